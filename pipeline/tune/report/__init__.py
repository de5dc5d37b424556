"""Reports of finished scores for people: errors with their texts, a list of all scores, and one page.

scores      a committed artefact of scores, opened for reading
distilled   teachers and students: size, speed, share of the score
lines       the lines of predictions of every form: right or wrong, how sure, and with which texts
errors      the worst errors of a training
bootstrap   confidence intervals over evaluation examples
published   the scores that papers report on the same tasks
curves      losses and metrics of trainings as SVG
page        all of it as one HTML file
listing     all scores below a directory
tracked     the page, logged to the trainings' MLflow runs
"""
