"""Reports of finished scores for people: errors with their texts, and one page.

predictions  the lines of predictions of every form: right or wrong, how sure, their texts; the worst errors
bootstrap    confidence intervals over evaluation examples
page         all of it as one HTML file, also for the trials' MLflow runs
"""
