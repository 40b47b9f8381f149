"""Results of least squares: the solution, the covariance of its params, and text reports."""
