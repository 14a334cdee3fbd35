"""What a program might try. One word says what; it prints what came."""
import ctypes, errno, fcntl, os, resource, socket, struct, subprocess, sys, time
SOL = socket.SOL_SOCKET

def line(name, of):
    try: said = of()
    except OSError as error: said = errno.errorcode.get(error.errno, error)
    print(f'{name}: {said}', flush=True)

def families():
    """Ways to a network that are no circuit."""
    for name, arguments in [('packet', (17, 3, 0x300)), ('packet dgram', (17, 2, 0x300)), ('raw', (2, 3, 1)), ('raw 6', (10, 3, 58)), ('ping', (2, 2, 1)),
            ('sctp', (2, 1, 132)), ('vsock', (40, 1, 0)), ('xdp', (44, 3, 0)), ('tipc', (30, 1, 0)), ('smc', (43, 1, 0)), ('bluetooth', (31, 3, 1)), ('can', (29, 3, 1)), ('alg', (38, 5, 0)), ('key', (15, 3, 2))]:
        line(name, lambda: socket.socket(*arguments) and 'MADE')

def pair(address='127.0.0.1'):
    with socket.socket() as l:
        l.bind((address, 0)); l.listen()
        c = socket.socket(); c.connect(l.getsockname()); a, _ = l.accept()
        return c, a

def passes():
    """A descriptor, and who one is, over a circuit: from here to who listens at 80."""
    c = socket.socket(); c.connect(('10.1.1.10', 80))
    with open('/etc/passwd') as f:
        line('descriptor', lambda: socket.send_fds(c, [b'with'], [f.fileno()]))
        line('descriptors', lambda: socket.send_fds(c, [b'with'], [f.fileno()] * 100))
    line('who', lambda: c.sendmsg([b'who'], [(SOL, 2, struct.pack('iii', os.getpid(), os.getuid(), os.getgid()))]))
    line('out of band', lambda: c.send(b'!', socket.MSG_OOB))
    c.sendall(b'end'); c.shutdown(1); c.recv(10)

def hears():
    """Prints all that is not bytes of those who connect."""
    l = socket.socket(); l.bind(('10.1.1.10', 80)); l.listen()
    for option in 16, 34, 76, 83: line(f'listener {option}', lambda: l.setsockopt(SOL, option, 1))
    print('hears', flush=True)
    while True:
        c, _ = l.accept(); whole = b''
        for option in 16, 34, 76, 83: line(f'sets {option}', lambda: c.setsockopt(SOL, option, 1))
        # Of the peer: what TCP says of it at most.
        line('SO_PEERCRED', lambda: struct.unpack('iii', c.getsockopt(SOL, 17, 12)))
        for option in 28, 59, 77: line(f'gets {option}', lambda: c.getsockopt(SOL, option, 100).hex())
        ancillary = []
        while True:
            data, more, _, _ = c.recvmsg(1000, 4000)
            if not data: break
            whole += data; ancillary += more
        print('heard', whole.endswith(b'end'), ancillary, flush=True)
        c.sendall(b'done'); c.close()

def told():
    """Whose data comes: TCP names nobody, and the name of the listener is not for a client."""
    lib = ctypes.CDLL(None, use_errno=True)
    for which, (s, other) in enumerate([(a, b) for pair_ in [pair()] for a, b in [pair_, pair_[::-1]]]):
        other.sendall(b'12345'); time.sleep(0.05)
        for call in 'recvfrom', 'recvmsg':
            name = ctypes.create_string_buffer(128)
            data = ctypes.create_string_buffer(2)
            if call == 'recvfrom':
                length = ctypes.c_int(128)
                lib.recvfrom(s.fileno(), data, 2, 0, name, ctypes.byref(length)); said = length.value
            else:
                piece = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(data), 2))
                message = ctypes.create_string_buffer(struct.pack('QIxxxxQQQQQ', ctypes.addressof(name), 128, ctypes.addressof(piece), 1, 0, 0, 0))
                lib.recvmsg(s.fileno(), message, 0); said = struct.unpack_from('I', message, 8)[0]
            print(('client', 'server')[which], call, data.raw, 'a name' if len(name.raw[2:said].strip(b'\0')) >= 8 else 'nobody', flush=True)
            # Whoever hears a name has nothing by it: there nobody can be called past the operator.
            if said > 2:
                u = socket.socket(socket.AF_UNIX)
                at = lib.connect(u.fileno(), name, said); print('calls', at, errno.errorcode.get(ctypes.get_errno()), flush=True)

def lends(path):
    """Gives a listening and a fresh circuit to whoever comes."""
    l = socket.socket(); l.bind(('0.0.0.0', 90)); l.listen(); s = socket.socket()
    u = socket.socket(socket.AF_UNIX); u.bind(path); os.chmod(path, 0o777); u.listen()
    print('lends', flush=True)
    c, _ = u.accept(); socket.send_fds(c, [b'x'], [l.fileno(), s.fileno()]); c.recv(1)

def borrows(path):
    u = socket.socket(socket.AF_UNIX); u.connect(path)
    listening, fresh = (socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fd) for fd in socket.recv_fds(u, 1, 2)[1])
    for call, of in ('accept', listening.accept), ('getsockname', listening.getsockname), ('connect', lambda: fresh.connect(('10.1.1.10', 80))):
        try: of(); print(call + ': DONE')
        except OSError as e: print(call + ':', errno.errorcode[e.errno])

def names():
    """AF_UNIX names for a circuit, and circuits among the names of this namespace."""
    lib = ctypes.CDLL(None, use_errno=True)
    path = b'/tmp/none-of-circuits'
    for call in 'bind', 'connect':
        for name in b'\0abstract', path + b'\0', b'':
            s = socket.socket()
            data = struct.pack('=H', socket.AF_UNIX) + name
            result = getattr(lib, call)(s.fileno(), data, len(data))
            print(f'{call} {name!r}:', errno.errorcode[ctypes.get_errno()] if result else 'DONE')
    print('path:', os.path.exists(path))
    c, a = pair(); l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
    print('listed:', len([one for one in open('/proc/net/unix').read().splitlines()[1:] if '@' in one]))
    # Its kind is not to be seen from its name either.
    for s in c, a, l: print('named:', s.getsockname()[0], end=' ')
    print()

def network():
    """Its own network namespace is its own to change: that leads nowhere."""
    def ip(words):
        done = subprocess.run(['ip'] + words.split(), capture_output=True, text=True)
        return done.returncode == 0
    # Whether they succeed is no matter.
    for words in ['addr add 10.1.1.12/32 dev lo', 'addr add 10.1.1.77/32 dev lo', 'route add default dev lo', 'link add outer type veth peer name inner',
            'route add local 10.1.1.0/24 dev lo', 'addr add 192.0.2.1/24 dev lo']: ip(words)
    def bound(address):
        s = socket.socket(); s.bind((address, 0)); return 'DONE'
    line('as another', lambda: bound('10.1.1.12'))
    line('as nobody', lambda: bound('10.1.1.77'))
    line('outside', lambda: socket.create_connection(('192.0.2.1', 80), 5) and 'DONE')
    line('nobody', lambda: socket.create_connection(('10.1.1.77', 80), 5) and 'DONE')
    line('denied', lambda: socket.create_connection(('10.1.1.10', 81), 5) and 'DONE')
    # The filter goes where it goes.
    lib = ctypes.CDLL(None, use_errno=True)
    lib.unshare(0x40000000)
    line('denied from elsewhere', lambda: socket.create_connection(('10.1.1.10', 81), 5) and 'DONE')
    line('allowed from elsewhere', lambda: socket.create_connection(('10.1.1.10', 80), 5) and 'DONE')
    def host():
        with open('/proc/1/ns/net') as f: return 'DONE' if lib.setns(f.fileno(), 0x40000000) == 0 else 'refused'
    try: print('host:', host())
    except PermissionError: print('host: refused')
    # A second filter that allows all does not loosen the first; a second listener there is none.
    print('listener of its own:', 'DONE' if lib.syscall(317, 1, 8, ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(ALLOW)))) >= 0 else errno.errorcode[ctypes.get_errno()])
ALLOW = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))

def flood():
    """As many sockets as it gets, and what it gets when it has closed them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000))
    for _ in range(3):
        held = []
        try:
            while len(held) < 4000: held.append(socket.socket())
        except OSError as error: print(len(held), errno.errorcode[error.errno], flush=True)
        if _ == 0:
            print('full', flush=True); sys.stdin.read(1)
        del held
    # Connections that nobody accepts count as well.
    held, l = [], socket.socket(); l.bind(('127.0.0.1', 0)); l.listen(1000)
    try:
        while len(held) < 4000:
            s = socket.socket(); held.append(s); s.connect(l.getsockname()); held.append(l.accept()[0])
    except OSError as error: print(len(held) + 1, errno.errorcode[error.errno], flush=True)

def high():
    """Circuits and other sockets at numbers at which messages are mediated."""
    first = 600
    c, a = pair(); l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
    def up(s, number): os.dup2(s.fileno(), number); n = socket.socket(fileno=number); s.detach(); return n
    at = l.getsockname()
    c, a, l = up(c, first), up(a, first + 1), up(l, first + 2)
    line('sends', lambda: (c.send(b'one'), a.recv(10)))
    line('sendto', lambda: (c.sendto(b'two', ('10.1.1.10', 81)), a.recv(10)))
    line('sendmsg', lambda: (a.sendmsg([b'three']), c.recvmsg(10)[0]))
    with open('/etc/passwd') as f: line('descriptor', lambda: socket.send_fds(c, [b'five'], [f.fileno()]))
    d = socket.socket(); d.connect(at); line('accepts', lambda: l.accept()[1] == d.getsockname())
    line('name', lambda: l.getsockname() == at)
    u, v = socket.socketpair(); u, v = up(u, first + 3), up(v, first + 4)
    line('unix', lambda: (u.send(b'six'), v.recv(10)))
    # Descriptor passing between its own AF_UNIX sockets is its own business.
    with open('/etc/passwd') as f: line('unix descriptor', lambda: (socket.send_fds(u, [b'x'], [f.fileno()]), len(socket.recv_fds(v, 1, 1)[1])))

def below():
    """A UDP socket at a number at which messages are not mediated: whom it hears, and what it
    can do with that name."""
    a, b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    a.bind(('127.0.0.1', 0)); b.bind(('127.0.0.1', 0))
    low = lambda s: fcntl.fcntl(s, fcntl.F_DUPFD, 3)
    one, other = low(a), low(b)
    print('below', one < 512 and other < 512, a.fileno() >= 512)
    lib = ctypes.CDLL(None, use_errno=True)
    a.sendto(b'x', b.getsockname())
    name, length, data = ctypes.create_string_buffer(128), ctypes.c_int(128), ctypes.create_string_buffer(9)
    lib.recvfrom(other, data, 9, 0, name, ctypes.byref(length))
    family = struct.unpack_from('=H', name)[0]
    print('heard', data.raw[:1], family == socket.AF_UNIX, length.value)
    def tried(call, *arguments):
        done = getattr(lib, call)(*arguments)
        return 'DONE' if done >= 0 else errno.errorcode[ctypes.get_errno()]
    # To a socket of its own: whoever could do this could do it to a socket of anybody's.
    print('sends to its name', tried('sendto', other, b'x', 1, 0, name, length.value))
    u = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    print('from elsewhere', tried('sendto', u.fileno(), b'x', 1, 0, name, length.value))
    print('connects to it', tried('connect', other, name, length.value))
    denied = struct.pack('=H', 2) + struct.pack('!H', 81) + socket.inet_aton('10.1.1.10') + bytes(8)
    print('sends to an address', tried('sendto', other, b'x', 1, 0, denied, 16))
    print('descriptor', tried_fds(socket.socket(fileno=low(a)), b.getsockname()))

def tried_fds(s, to):
    with open('/etc/passwd') as f:
        try:
            s.connect(to)
            return socket.send_fds(s, [b'x'], [f.fileno()])
        except OSError as error: return errno.errorcode[error.errno]

def spoofs():
    """Disconnects and connects again before it is accepted: a connection that its listener
    knows of and the kernel does not would give the next one a wrong name."""
    c = socket.socket(); c.connect(('10.1.1.10', 80))
    data = struct.pack('=H', socket.AF_UNSPEC) + bytes(14)
    lib = ctypes.CDLL(None, use_errno=True)
    for _ in range(3):
        lib.connect(c.fileno(), data, len(data))
        try: c.connect(('10.1.1.10', 80))
        except OSError: pass
    print('connected', flush=True); time.sleep(60)

def order():
    """Accepts late, and prints what each says and which name it has."""
    l = socket.socket(); l.bind(('10.1.1.10', 80)); l.listen(); print('listens', flush=True)
    sys.stdin.read(1)
    while True:
        c, who = l.accept(); c.settimeout(0.5)
        try: said = c.recv(100).decode()
        except OSError: said = 'nothing'
        print(who[0], said, flush=True); c.close()

globals()[sys.argv[1]](*sys.argv[2:])
