"""The image competitions of Kaggle from 2023 to 2026, in small: files, commands and readings."""
