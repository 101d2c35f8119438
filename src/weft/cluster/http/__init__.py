"""Connections from whoever dials in: silent, slow or one too many, they cost next to nothing.

In: what every HTTP server of Weft does about a connection before there is a request, and who is let
in. Out: what is asked and answered, and how that is counted (the hosts).
"""
