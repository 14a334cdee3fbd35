"""Sends 20 Mbit/s of UDP to ADDRESS for a second; prints how many thousands of bytes."""
import socket
import sys
import time

out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end = time.time() + 1
sent = 0
while time.time() < end:
    out.sendto(b"x" * 1000, (sys.argv[1], 9))
    sent += 1
    time.sleep(0.0004)
print(sent)
