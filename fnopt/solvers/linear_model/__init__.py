"""The linear model of the residuals at a point: its linear algebra and its scaling."""
