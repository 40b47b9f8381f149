"""The result of a fit: the solution, its covariance, its report."""
