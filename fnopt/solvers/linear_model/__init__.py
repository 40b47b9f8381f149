"""The linear model of the residuals at a point: the linear solver and the scaling."""
