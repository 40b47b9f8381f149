"""Linear models of the residuals at a point, one for each linear solver, and their scaling."""
