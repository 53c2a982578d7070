"""How a server holds up: requests that come at fixed rates, whether or not earlier ones are done.

A client that waits for an answer before it asks again would spare a slow server, and hide what those wait
who come meanwhile (an open loop, see Schroeder et al. 2006, "Open versus closed: a cautionary tale").
"""
