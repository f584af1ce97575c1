"""A gate rule: a number that the target has not seen is not shown."""


class NoNumbers:
    name = "no-numbers"

    def hold(self, offset, span, confidence, tail):
        number = any(byte in b"0123456789" for byte in span.data)
        return "number" if number or tail.endswith((b"$", b"No. ")) else None
