"""Predictors of a frozen base's attention: `part` is the training part, the other files are what it is made of."""
