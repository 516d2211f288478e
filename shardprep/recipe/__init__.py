"""The recipe: every option of a build once, and the document that carries it."""
