"""Distillation of a fine-tuned teacher into a student (Hinton et al. 2015).

teacher      the network of a reference, its labels, and its weights
task         a task whose loss also asks the teacher
comparison   teacher and student side by side: size, speed, score
"""
