"""A module beside the operators', which they import."""


def half_of(number):
    return number / 2
