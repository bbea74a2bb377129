"""How an export fails, and what an error says of its cause."""
import re


class NotExported(Exception):
    """What cannot be exported, or not be trained as the module is, and why. The file is left where it is if it was written."""


class Differs(NotExported):
    """A step of Piper and one of PyTorch are not the same."""


def first_line(error):
    """Of what was at fault first."""
    while error.__cause__ is not None:
        error = error.__cause__
    asked = re.search(r'call raised this error:\s*File "([^"]*)", line (\d+).*\n\s*(.*)', str(error))
    if asked and "data-dependent" in str(error):
        return f"what it does there depends on values that inputs or parameters decide: {asked[3]} ({asked[1]}:{asked[2]})"
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
