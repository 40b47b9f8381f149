"""The linear model of the residuals at a point: its algebra, its scaling, what it leaves out."""
