"""What a UDP socket does, one line each. It runs on the kernel's own UDP and on circuits, at an
endpoint's own addresses, and the lines are compared: so nothing that differs from run to run is
in them (ports, times)."""
import array, ctypes, errno, fcntl, os, select, signal, socket, struct, sys, threading, time
V4, V6, LO = '10.1.1.10', 'fd00:1::10', '127.0.0.1'
SOL = socket.SOL_SOCKET
lib = ctypes.CDLL(None, use_errno=True)

def named(error):
    return errno.errorcode.get(error.errno, repr(error))

def line(name, of):
    try: said = of()
    except OSError as error: said = named(error)
    print(f'{name}: {said}', flush=True)

def new(family=socket.AF_INET, bound=None):
    s = socket.socket(family, socket.SOCK_DGRAM)
    # No timeout of Python's, which polls before it receives: a wait of the kernel's.
    s.settimeout(None); s.setsockopt(SOL, socket.SO_RCVTIMEO, struct.pack('ll', 0, 300000))
    if bound: s.bind((bound, 0))
    return s

def of(address): return socket.AF_INET6 if ':' in address else socket.AF_INET

def word(name):
    """A name without its port."""
    return (name[0], 'zero' if name[1] == 0 else 'port') + tuple(name[2:])

def raw(s, call, data):
    if call == 'connect': done = lib.connect(s.fileno(), data, len(data))
    else: done = lib.sendto(s.fileno(), b'x', 1, 0, data, len(data))
    return errno.errorcode[ctypes.get_errno()] if done < 0 else 'done'

def unspec(s): return raw(s, 'connect', struct.pack('=H', 0) + bytes(14))

def states():
    """Every way to a state, and each call in it."""
    target = new(bound=LO); at = target.getsockname()
    steps = {
        'fresh': lambda s: None,
        'bind': lambda s: s.bind((LO, 0)),
        'bind any': lambda s: s.bind(('0.0.0.0', 0)),
        'bind port': lambda s: s.bind((LO, 31234)),
        'send': lambda s: s.sendto(b'x', at),
        'connect': lambda s: s.connect(at),
        'connect self': lambda s: s.connect((V4, at[1])),
        'connect fails': lambda s: s.connect(('192.0.2.1', 9)),
        'send fails': lambda s: s.sendto(b'x', ('192.0.2.1', 9)),
        'unspec': unspec,
        'shut': lambda s: s.shutdown(socket.SHUT_RD),
        'listen': lambda s: s.listen(),
        'accept': lambda s: lib.accept(s.fileno(), None, None) < 0 and errno.errorcode[ctypes.get_errno()],
    }
    ways = [(one,) for one in steps] + [(one, two) for one in steps for two in steps] + [
        ('connect', 'unspec', 'send'), ('connect', 'unspec', 'connect'), ('connect', 'connect fails', 'unspec'),
        ('bind', 'connect', 'unspec'), ('bind any', 'connect', 'unspec'), ('bind port', 'connect', 'unspec'),
        ('connect fails', 'connect', 'unspec'), ('bind port', 'unspec', 'bind'), ('bind', 'unspec', 'send'),
        ('bind', 'unspec', 'connect'), ('send', 'connect', 'unspec'), ('connect self', 'unspec', 'connect')]
    for way in ways:
        name = ', '.join(way); s = new()
        for step in way[:-1]:
            try: steps[step](s)
            except OSError: pass
        line(f'{name}, comes to', lambda: steps[way[-1]](s))
        line(f'{name}, name', lambda: word(s.getsockname()))
        line(f'{name}, peer', lambda: word(s.getpeername()))
        if 'shut' not in way:
            line(f'{name}, sends', lambda: s.sendmsg([b'whole']))
            line(f'{name}, sends to', lambda: s.sendto(b'whole', at))
        line(f'{name}, binds', lambda: s.bind((LO, 0)))
        s.close()
        # What it has sent is not looked at.
        try:
            while True: target.recv(10, socket.MSG_DONTWAIT)
        except OSError: pass

def named_wrongly():
    target = new(bound=LO); port = target.getsockname()[1]
    six = new(socket.AF_INET6, '::1'); port6 = six.getsockname()[1]
    four = struct.pack('=H', 2) + struct.pack('!H', port) + bytes([127, 0, 0, 1]) + bytes(8)
    forms = {'v4': four, 'v4 short': four[:15], 'v4 long': four + bytes(12), 'unspec': b'\0\0' + four[2:], 'other': b'\x4d\0' + four[2:],
        'one byte': b'\2', 'two bytes': b'\2\0', 'v6': struct.pack('=H', 10) + struct.pack('!H', port6) + bytes(4) + bytes(15) + b'\1' + bytes(4),
        'v6 short': b'\x0a\0' + bytes(21), 'mapped': struct.pack('=H', 10) + struct.pack('!H', port) + bytes(4) + bytes(10) + b'\xff\xff\x7f\0\0\1' + bytes(4), 'nothing': b''}
    for family in socket.AF_INET, socket.AF_INET6:
        for call in 'connect', 'sendto':
            for form, data in forms.items():
                for only in (0, 1) if family == socket.AF_INET6 else (0,):
                    s = new(family)
                    if only: s.setsockopt(41, socket.IPV6_V6ONLY, 1)
                    line(f'{family.name} {call} {form} {only}', lambda: raw(s, call, data)); s.close()
    s = new()
    line('to port zero', lambda: s.sendto(b'x', (LO, 0)))
    line('connect to port zero', lambda: s.connect((LO, 0)))
    for name, to in ('broadcast', '255.255.255.255'), ('group', '224.0.0.1'):
        s = new(); line(f'{name}', lambda: s.sendto(b'x', (to, 9))); line(f'{name} connect', lambda: s.connect((to, 9)))
        s.setsockopt(SOL, socket.SO_BROADCAST, 1); line(f'{name}, allowed', lambda: s.sendto(b'x', (to, 9)))
    s = new(); line('too long', lambda: s.sendto(bytes(65508), (LO, port)))
    line('longest', lambda: s.sendto(bytes(65507), (LO, port)) and len(target.recv(70000)))
    line('out of band', lambda: s.sendto(b'x', socket.MSG_OOB, (LO, port)))
    line('nowhere', lambda: s.sendto(b'x', ('192.0.2.1', 9)))
    line('unconnected', lambda: s.sendmsg([b'x']))

def names():
    """Who a datagram is from, and where it was sent to, between all kinds of addresses."""
    for bound in '0.0.0.0', '::', V4, V6, LO, '::1':
        server = new(of(bound), bound); port = server.getsockname()[1]
        server.setsockopt(0, socket.IP_PKTINFO if hasattr(socket, 'IP_PKTINFO') else 8, 1)
        if server.family == socket.AF_INET6: server.setsockopt(41, socket.IPV6_RECVPKTINFO, 1)
        for to in V4, V6, LO, '127.0.0.9', '::1', '::ffff:' + V4:
            for connects in False, True:
                what = f'{bound} {to} {connects}'
                client = new(of(to))
                def asks():
                    if connects:
                        client.connect((to, port))
                        # To nobody: told at once, or later.
                        try: client.send(b'asked')
                        except ConnectionRefusedError: pass
                    else: client.sendto(b'asked', (to, port))
                    data, control, flags, who = server.recvmsg(100, 200)
                    own = client.getsockname()
                    told = [(level, kind, told[4:] if level == 0 else told[:16]) for level, kind, told in control]
                    server.sendto(b'answer', who)
                    return data, sorted(told), flags, who[0], who[1] == own[1], len(who), client.recvfrom(100)[1][0]
                line(f'asks {what}', asks); client.close()
        server.close()
    # An answer from an address of one's choice.
    server = new(bound='0.0.0.0'); client = new(bound='0.0.0.0')
    def answers(source):
        server.sendmsg([b'x'], [(0, 8, struct.pack('=I4s4s', 0, socket.inet_aton(source), bytes(4)))], 0, (V4, client.getsockname()[1]))
        return client.recvfrom(10)[1][0]
    line('source', lambda: answers(V4)); line('source any', lambda: answers('0.0.0.0')); line('source of nobody', lambda: answers('10.9.9.9'))
    # To itself.
    s = new(bound=LO); s.sendto(b'own', s.getsockname()); line('to itself', lambda: (s.recvfrom(10)[1] == s.getsockname()))
    s.connect(s.getsockname()); s.send(b'own'); line('connected to itself', lambda: s.recv(10))

def data():
    a, b = new(bound=LO), new(bound=LO); at = b.getsockname()
    for n in 0, 1, 2, 3: a.sendto(b'x' * n, at)
    line('boundaries', lambda: [len(b.recvfrom(10)[0]) for _ in range(4)])
    for call in 'recv', 'recvfrom', 'recvmsg':
        a.sendto(b'12345', at); line(f'cut {call}', lambda: (lambda it: it if call == 'recv' else it[0] if call == 'recvfrom' else it[:3])(getattr(b, call)(2)))
        a.sendto(b'12345', at); line(f'cut, length {call}', lambda: len(b.recv(2, socket.MSG_TRUNC)))
        line(f'and nothing else {call}', lambda: getattr(b, call)(10, *([0] if call == 'recvmsg' else []), socket.MSG_DONTWAIT))
    a.sendto(b'peeked', at); line('peeks', lambda: (b.recvfrom(3, socket.MSG_PEEK)[0], b.recvmsg(10, 0, socket.MSG_PEEK)[0], b.recvfrom(10)[0]))
    a.sendto(b'read', at); line('reads', lambda: os.read(b.fileno(), 10))
    a.sendto(b'pieces', at)
    def pieces():
        one, two = bytearray(2), bytearray(10)
        return b.recvmsg_into([one, two])[0], bytes(one), bytes(two)
    line('into pieces', pieces)
    line('from pieces', lambda: (a.sendmsg([b'on', b'', b'e'], [], 0, at), b.recv(10)))
    line('no control', lambda: (a.sendto(b'x', at), b.recvmsg(10, 100)[1:3]))
    a.sendto(b'12345', at); line('how much', lambda: struct.unpack('i', fcntl.ioctl(b, 0x541b, b'1234'))[0]); b.recv(10)
    line('error queue', lambda: b.recvmsg(10, 100, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT))
    a.connect(at)
    line('connected', lambda: (a.send(b'one'), a.sendmsg([b'two']), os.write(a.fileno(), b'three'), [b.recvfrom(10)[0] for _ in range(3)]))
    c = new(bound=LO)
    line('another, though connected', lambda: (a.sendto(b'other', c.getsockname()), c.recvfrom(10)[1] == a.getsockname()))
    line('a connected one hears its peer', lambda: (c.sendto(b'no', a.getsockname()), b.sendto(b'yes', a.getsockname()), a.recvfrom(10)[0]))
    line('and nobody else', lambda: a.recvfrom(10, socket.MSG_DONTWAIT))
    b.connect(a.getsockname())
    line('both', lambda: (a.send(b'there'), b.send(b'back'), a.recv(10), b.recv(10)))
    line('and no more', lambda: b.recvmsg(10, 0, socket.MSG_DONTWAIT))
    # Queued before it was connected: it is heard.
    d = new(bound=LO); c.sendto(b'early', d.getsockname()); d.connect(a.getsockname()); line('early', lambda: d.recv(10))

class Many(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('namelen', ctypes.c_uint32), ('iov', ctypes.c_void_p), ('iovlen', ctypes.c_size_t), ('control', ctypes.c_void_p),
        ('controllen', ctypes.c_size_t), ('flags', ctypes.c_int), ('pad', ctypes.c_int), ('len', ctypes.c_uint)]

def many():
    a, b = new(bound=LO), new(bound=LO); a.connect(b.getsockname())
    texts = [ctypes.create_string_buffer(b'%d' % n * (n + 1), n + 1) for n in range(5)]
    pieces = [ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(t), len(t))) for t in texts]
    out = (Many * 5)(*[Many(None, 0, ctypes.addressof(p), 1, None, 0, 0, 0, 0) for p in pieces])
    line('sends many', lambda: (lib.sendmmsg(a.fileno(), out, 5, 0), [m.len for m in out]))
    room = [ctypes.create_string_buffer(3) for _ in range(8)]; who = [ctypes.create_string_buffer(16) for _ in range(8)]
    pieces = [ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(t), 3)) for t in room]
    into = (Many * 8)(*[Many(ctypes.addressof(w), 16, ctypes.addressof(p), 1, None, 0, 0, 0, 0) for p, w in zip(pieces, who)])
    line('receives many', lambda: (lib.recvmmsg(b.fileno(), into, 8, socket.MSG_DONTWAIT, None), [(m.len, m.flags, m.namelen) for m in into][:5], [r.raw for r in room][:5]))
    line('from', lambda: {struct.unpack('!H', w.raw[2:4])[0] == a.getsockname()[1] for w in who[:5]})
    line('none are left', lambda: (lib.recvmmsg(b.fileno(), into, 8, socket.MSG_DONTWAIT, None), errno.errorcode[ctypes.get_errno()]))
    line('one is waited for', lambda: (threading.Timer(0.1, lambda: a.send(b'late')).start(), lib.recvmmsg(b.fileno(), into, 8, 0x10000, None))[1])

def waiting():
    a, b = new(bound=LO), new(bound=LO); at = b.getsockname()
    for call in 'recv', 'recvfrom', 'recvmsg':
        threading.Timer(0.1, lambda: a.sendto(b'late', at)).start()
        line(f'waits {call}', lambda: getattr(b, call)(10) if call == 'recv' else getattr(b, call)(10)[0])
        line(f'does not {call}', lambda: getattr(b, call)(10, *([0] if call == 'recvmsg' else []), socket.MSG_DONTWAIT))
        b.setblocking(False); line(f'nonblocking {call}', lambda: getattr(b, call)(10)); b.settimeout(None)
        b.setsockopt(SOL, socket.SO_RCVTIMEO, struct.pack('ll', 0, 200000)); start = time.monotonic()
        line(f'times out {call}', lambda: getattr(b, call)(10)); line(f'in time {call}', lambda: 0.15 < time.monotonic() - start < 5)
        b.setsockopt(SOL, socket.SO_RCVTIMEO, struct.pack('ll', 0, 0))
    class Alarm(Exception): pass
    def alarmed(*_): raise Alarm
    def interrupted(of):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try: of(); return 'returned'
        except Alarm: return 'EINTR'
    old = signal.signal(signal.SIGALRM, alarmed)
    for call in 'recv', 'recvfrom', 'recvmsg': line(f'interrupted {call}', lambda: interrupted(lambda: getattr(b, call)(10)))
    hits = []
    signal.signal(signal.SIGALRM, lambda *_: hits.append(1)); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.02)
    threading.Timer(1.5, lambda: a.sendto(b'after all', at)).start()
    line('goes on', lambda: (b.recvfrom(10)[0], len(hits) > 2))
    signal.setitimer(signal.ITIMER_REAL, 0); signal.signal(signal.SIGALRM, old)
    # Two wait, each gets one.
    got = []
    threads = [threading.Thread(target=lambda: got.append(b.recvfrom(10)[0])) for _ in range(2)]
    for t in threads: t.start()
    time.sleep(0.1); a.sendto(b'1', at); a.sendto(b'2', at)
    for t in threads: t.join()
    line('two wait', lambda: sorted(got))
    def polled(s, events=select.POLLIN | select.POLLOUT, wait=0):
        p = select.poll(); p.register(s, events); return [e for _, e in p.poll(wait)]
    line('idle', lambda: polled(b)); a.sendto(b'x', at); time.sleep(0.02); line('readable', lambda: polled(b)); b.recv(1); line('idle again', lambda: polled(b))
    e = select.epoll(); e.register(b, select.EPOLLIN | select.EPOLLET)
    threading.Timer(0.1, lambda: a.sendto(b'x', at)).start(); line('epoll', lambda: [n for _, n in e.poll(5)]); line('select', lambda: select.select([b], [], [], 5)[0] == [b])

def nobody():
    """Nobody has the port; then somebody."""
    s = new(bound=LO); port = s.getsockname()[1]; s.close()
    c = new(); c.connect((LO, port))
    def told():
        said = []
        for _ in range(3):
            try: said.append(c.send(b'x'))
            except OSError as error: said.append(named(error))
        return 'ECONNREFUSED' in said
    line('is told', told)
    line('unconnected is not', lambda: [new().sendto(b'x', (LO, port)) for _ in range(2)])
    server = new(); server.bind((LO, port))
    def comes():
        try: c.send(b'x')
        except OSError: c.send(b'x')
        return server.recvfrom(10)[0]
    line('somebody is there again', comes)
    server.close(); server = new(); server.bind((LO, port))
    line('another', comes)
    # A server is connected to one, another hears the rest.
    d = new(); d.connect((LO, port)); e = new(); e.setsockopt(SOL, socket.SO_REUSEADDR, 1)
    server.setsockopt(SOL, socket.SO_REUSEADDR, 1); e.bind((LO, port)); server.connect(c.getsockname())
    def both():
        for s in c, d:
            try: s.send(b'x')
            except OSError: s.send(b'x')
        return server.recvfrom(10)[1] == c.getsockname(), e.recvfrom(10)[1] == d.getsockname()
    line('each to its own', both)
    # A sender that is gone by the time its datagram is read.
    s = new(bound=LO); name = s.getsockname(); s.sendto(b'last', (LO, e.getsockname()[1])); s.close()
    line('of one who is gone', lambda: e.recvfrom(10) == (b'last', name))

def full():
    """Nobody reads: the sender is not held up."""
    r = new(bound=LO); s = new()
    for n in range(150): s.sendto(b'%d' % n, r.getsockname())
    line('a burst', lambda: [int(r.recv(10)) for _ in range(150)] == list(range(150)))
    start = time.monotonic()
    line('sent', lambda: {s.sendto(bytes(100), r.getsockname()) for _ in range(3000)})
    line('at once', lambda: time.monotonic() - start < 5)
    other = new(bound=LO)
    def drained():
        try:
            while True: r.recv(200, socket.MSG_DONTWAIT)
        except OSError: pass
        s.sendto(b'after', r.getsockname()); return r.recvfrom(10)[0]
    line('then', drained)

def reuse():
    addr, port = (SOL, socket.SO_REUSEADDR, 1), (SOL, socket.SO_REUSEPORT, 1)
    def two(first, second, one, other):
        made = []
        try:
            for address, wants in zip((one, other), (first, second)):
                s = new(of(address)); made.append(s)
                for option in wants: s.setsockopt(*option)
                s.bind((address, made[0].getsockname()[1] if len(made) > 1 else 0))
            return 'both'
        finally:
            for s in made: s.close()
    for name, first, second in [('none', [], []), ('address', [addr], [addr]), ('port', [port], [port]), ('one port', [], [port]), ('one address', [addr], [])]:
        for one, other in (LO, LO), ('0.0.0.0', LO), (V4, LO), ('::', '0.0.0.0'), ('::', V4), (V6, '::'):
            line(f'two {name} {one} {other}', lambda: two(first, second, one, other))
    a, b = new(), new()
    for s in a, b: s.setsockopt(*port)
    a.bind((LO, 0)); b.bind(a.getsockname()); to = a.getsockname(); many = []
    for n in range(64): s = new(); s.sendto(b'x', to); many.append(s)
    def count(s):
        n = 0
        try:
            while True: s.recvfrom(1, socket.MSG_DONTWAIT); n += 1
        except OSError: return n
    counts = [count(s) for s in (a, b)]
    line('shared port', lambda: (sum(counts), all(counts)))
    # Whichever of them has the question, each answers.
    c = new(); c.connect(to); c.send(b'asked')
    def answers():
        for s in a, b:
            try: who = s.recvfrom(10, socket.MSG_DONTWAIT)[1]
            except BlockingIOError: continue
        return [(s.sendto(b'answer', who), c.recvfrom(10) == (b'answer', to)) for s in (a, b)]
    line('answers of both', answers)
    def as_tcps():
        # A port of TCP's own choice may be one of UDP's above: one in three.
        for n in range(3):
            t = socket.socket(); t.bind((LO, 0)); made.append(t)
            try: return new().bind(t.getsockname())
            except OSError as error: last = error
        raise last
    made = []; line('TCP has ports of its own', as_tcps)

def options():
    for family in socket.AF_INET, socket.AF_INET6:
        s = new(family)
        for level, name in [(SOL, 3), (SOL, 38), (SOL, 39), (SOL, 30), (SOL, 6), (SOL, 4), (SOL, 9), (0, 2), (0, 8), (0, 10), (0, 11), (0, 34), (41, 26), (41, 49), (17, 1), (17, 103), (6, 1), (SOL, 17)]:
            line(f'{family.name} {level} {name}', lambda: s.getsockopt(level, name))
        for level, name, value in [(SOL, 2, 1), (SOL, 15, 1), (SOL, 6, 1), (0, 8, 1), (0, 10, 2), (0, 11, 1), (0, 13, 1), (0, 33, 5), (41, 49, 1), (41, 26, 1), (6, 1, 1), (17, 103, 0), (0, 2, 300)]:
            line(f'{family.name} {level} {name} set', lambda: (s.setsockopt(level, name, value), s.getsockopt(level, name)))
        line(f'{family.name} join', lambda: s.setsockopt(0, 35, socket.inet_aton('224.0.0.1') + bytes(4)))

def kinds():
    for name, arguments in [('17', (2, 2, 17)), ('0', (2, 2, 0)), ('6', (2, 2, 6)), ('six', (10, 2, 17)), ('raw', (2, 2, 255)), ('flags', (2, 2 | 0x800 | 0x80000, 0))]:
        def made():
            fd = lib.socket(*arguments)
            if fd < 0: return errno.errorcode[ctypes.get_errno()]
            flags = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK), fcntl.fcntl(fd, fcntl.F_GETFD)
            os.close(fd); return flags
        line(f'socket {name}', made)
    # A child goes on with it, and after exec, at another number.
    a, b = new(bound=LO), new(bound=LO); a.connect(b.getsockname()); b.connect(a.getsockname())
    if (pid := os.fork()) == 0:
        a.sendto(b'child', b.getsockname()); os._exit(0)
    os.waitpid(pid, 0); line('child', lambda: b.recvfrom(10)[0])
    if (pid := os.fork()) == 0:
        os.dup2(b.fileno(), 0); os.dup2(b.fileno(), 1); os.execvp('head', ['head', '-c', '5'])
    a.send(b'again'); os.waitpid(pid, 0); line('inetd', lambda: a.recv(10))

for part in states, named_wrongly, names, data, many, waiting, nobody, full, reuse, options, kinds:
    # What hangs ends with its part's name.
    print(f'== {part.__name__}', flush=True)
    child = os.fork()
    if child == 0:
        threading.Timer(60, lambda: (print('HANGS', flush=True), os._exit(1))).start()
        try: part()
        except BaseException as error: print('FAILS', type(error).__name__, error, error.__traceback__.tb_next.tb_lineno if error.__traceback__.tb_next else '', flush=True)
        os._exit(0)
    os.waitpid(child, 0)
