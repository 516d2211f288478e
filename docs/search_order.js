// Pages that contain nearly every word come after pages about the word.
const GENERAL = ["architecture", "changelog", "cli", "competitions", "contributing", "gallery", "index", "json", "kaggle"];
var Scorer = {
  score: ([page, , , , score]) => (GENERAL.includes(page) ? score / 4 : score),
  objNameMatch: 6, objPartialMatch: 3, objPrio: { 0: 2, 1: 1, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
