"""Mutation testing: every comparison, literal, condition and statement of a module is changed once; does anything notice?"""
