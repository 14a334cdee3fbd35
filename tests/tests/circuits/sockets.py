"""What a TCP socket does, one line each. It runs on the kernel's own TCP and on circuits, at
an endpoint's own addresses, and the lines are compared: so nothing that differs from run to
run is in them (ports, times, counts of bytes in buffers)."""
import errno, fcntl, os, select, signal, socket, struct, sys, threading, time
V4, V6 = '10.1.1.10', 'fd00:1::10'
TCP, SOL = socket.IPPROTO_TCP, socket.SOL_SOCKET

def named(error):
    return errno.errorcode.get(error.errno, repr(error))

def line(name, of):
    """Prints what `of` comes to, or its error."""
    try: said = of()
    except OSError as error: said = named(error)
    print(f'{name}: {said}', flush=True)

def new(family=socket.AF_INET, kind=socket.SOCK_STREAM):
    s = socket.socket(family, kind)
    s.settimeout(None)
    return s

def listening(address=V4, port=0, backlog=16):
    s = new(socket.AF_INET6 if ':' in address else socket.AF_INET)
    s.bind((address, port)); s.listen(backlog)
    return s

def pair(address=V4):
    with listening(address) as s:
        c = new(s.family); c.connect(s.getsockname()[:2])
        a, who = s.accept()
    return c, a

def port_word(name, known=()):
    """A name without its port, unless it is a known one."""
    port = name[1]
    word = 'zero' if port == 0 else 'known' if port in known else 'ephemeral' if 32768 <= port <= 60999 else 'other'
    return (name[0], word) + tuple(name[2:])

def names():
    for address in V4, V6, '127.0.0.1', '::1', '0.0.0.0', '::':
        s = new(socket.AF_INET6 if ':' in address else socket.AF_INET)
        line(f'fresh name {address}', lambda: port_word(s.getsockname()))
        line(f'fresh peer {address}', lambda: s.getpeername())
        s.bind((address, 0)); line(f'bound {address}', lambda: port_word(s.getsockname()))
        s.listen(5); line(f'listens {address}', lambda: port_word(s.getsockname()))
        port = s.getsockname()[1]
        c = new(s.family); c.connect((address, port))
        a, who = s.accept()
        line(f'client {address}', lambda: port_word(c.getsockname()))
        line(f'client peer {address}', lambda: port_word(c.getpeername(), [port]))
        line(f'accepted {address}', lambda: port_word(a.getsockname(), [port]))
        line(f'accepted peer {address}', lambda: port_word(a.getpeername()))
        line(f'who {address}', lambda: who == a.getpeername() == c.getsockname() and c.getpeername() == a.getsockname())
        c.close(); a.close(); s.close()
    # An IPv4 client of an IPv6 listener.
    s = listening('::'); c = new(); c.connect((V4, s.getsockname()[1])); a, who = s.accept()
    line('mapped', lambda: (port_word(who), port_word(a.getsockname(), [s.getsockname()[1]])))
    six = new(socket.AF_INET6); six.connect(('::ffff:' + V4, s.getsockname()[1]))
    line('mapped client', lambda: port_word(six.getpeername(), [s.getsockname()[1]]))
    for x in s, c, a, six: x.close()
    s = new(); s.bind((V4, 0)); mine = s.getsockname()[1]
    with listening() as l:
        s.connect(l.getsockname()); line('bound client', lambda: l.accept()[1] == (V4, mine))
    s.close()

def refused():
    with new() as s:
        s.bind((V4, 0)); port = s.getsockname()[1]
    line('closed port', lambda: new().connect((V4, port)))
    line('closed port v6', lambda: new(socket.AF_INET6).connect((V6, port)))
    line('closed port, ex', lambda: named(OSError(new().connect_ex((V4, port)), '')))
    line('port zero', lambda: new().connect((V4, 0)))
    with new() as s:
        s.bind((V4, 0)); line('bound only', lambda: new().connect(s.getsockname()))
    # One socket, again and again.
    s = new()
    for n in 1, 2:
        line(f'fails {n}', lambda: s.connect((V4, port)))
        line(f'after failing {n}', lambda: (s.getsockopt(SOL, socket.SO_ERROR), s.getsockname()[0]))
        line(f'peer after failing {n}', lambda: s.getpeername())
    with listening() as l:
        line('then connects', lambda: s.connect(l.getsockname()))
        line('then peer', lambda: s.getpeername() == l.getsockname())
        line('connects twice', lambda: s.connect(l.getsockname()))
        line('listens connected', lambda: s.listen(1))
        line('binds connected', lambda: s.bind((V4, 0)))
        line('a listener connects', lambda: l.connect(l.getsockname()))
        line('accept of a client', lambda: s.accept())
    s.close()
    line('accept, fresh', lambda: new().accept())
    line('send, fresh', lambda: new().send(b'x', socket.MSG_NOSIGNAL))
    line('recv, fresh', lambda: new().recv(1))
    line('shutdown, fresh', lambda: new().shutdown(2))
    # On a closed socket number.
    line('bind elsewhere', lambda: new().bind(('10.99.99.99', 0)))
    line('bind twice', lambda: (lambda s: (s.bind((V4, 0)), s.bind((V4, 0))))(new()))
    line('v4 address of v6 socket', lambda: new(socket.AF_INET6).connect((V4, 1)))
    line('listen unbound', lambda: (lambda s: (s.listen(1), port_word(s.getsockname())))(new()))

def calls(call, s, data, length=None):
    import ctypes
    lib = ctypes.CDLL(None, use_errno=True)
    if getattr(lib, call)(s.fileno(), data, len(data) if length is None else length) < 0:
        return errno.errorcode[ctypes.get_errno()]
    return 'done'

def addresses():
    """Addresses that no library would build."""
    four = struct.pack('=H', socket.AF_INET) + struct.pack('!H', 1) + socket.inet_aton(V4) + bytes(8)
    for call in 'connect', 'bind':
        for name, data, length in [
            ('empty', four, 0), ('one byte', four, 1), ('family only', four, 2), ('short', four, 15),
            ('negative', four, -1), ('too long', four * 20, 200),
            ('another family', struct.pack('=H', 99) + four[2:], None),
            ('unix', struct.pack('=H', socket.AF_UNIX) + b'\0name', None),
            ('unix path', struct.pack('=H', socket.AF_UNIX) + b'/tmp/none\0' + bytes(20), None),
            ('v6 too short', struct.pack('=H', socket.AF_INET6) + bytes(14), None),

        ]:

            with new() as s: line(f'{call} {name}', lambda: calls(call, s, data, length))
            with new(socket.AF_INET6) as s: line(f'{call} {name} v6', lambda: calls(call, s, data, length))
    unspecified = struct.pack('=H', socket.AF_UNSPEC) + bytes(14)
    with new() as s: line('unspecified fresh', lambda: calls('connect', s, unspecified))
    c, a = pair()
    line('unspecified connected', lambda: calls('connect', c, unspecified))
    line('its peer', lambda: c.getpeername())
    line('its name', lambda: port_word(c.getsockname()))
    with listening() as l:
        line('connects again', lambda: c.connect(l.getsockname()))
        l.setblocking(False)
        b = None
        def accepted(): nonlocal b; b = l.accept()[0]; return 'one'
        line('accepted again', accepted)
        if b: line('speaks', lambda: (c.send(b'hello'), b.recv(10)))
    line('its peer hears', lambda: a.recv(1))
    for x in c, a: x.close()
    c, a = pair(V6)
    a.setsockopt(SOL, socket.SO_RCVTIMEO, struct.pack('ll', 0, 50_000))
    a.setsockopt(TCP, socket.TCP_KEEPCNT, 4); a.setsockopt(SOL, socket.SO_SNDBUF, 100_000)
    line('unspecified accepted', lambda: calls('connect', a, unspecified))
    with listening(V6) as l:
        line('accepted connects', lambda: a.connect(l.getsockname()))
        line('accepted keeps its options', lambda: (a.getsockopt(SOL, socket.SO_RCVTIMEO, 16), a.getsockopt(TCP, socket.TCP_KEEPCNT), a.getsockopt(SOL, socket.SO_SNDBUF)))
        line('accepted times out', lambda: a.recv(1))
    for x in c, a: x.close()
    with listening() as l, new() as s:
        s.bind((V4, 0)); port = s.getsockname()[1]
        s.connect(l.getsockname()); fcntl.fcntl(s, fcntl.F_SETFL, os.O_NONBLOCK)
        line('unspecified bound', lambda: calls('connect', s, unspecified))
        line('bound keeps its port', lambda: s.getsockname() == (V4, port))
        line('bound is as it was', lambda: (fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK) != 0)
        line('bound connects again', lambda: s.connect_ex(l.getsockname()) in (0, errno.EINPROGRESS))
        line('and again', lambda: (calls('connect', s, unspecified), s.connect_ex(l.getsockname()) in (0, errno.EINPROGRESS)))
        line('and is taken again', lambda: calls('connect', s, unspecified))
        line('binds again', lambda: s.bind((V4, 0)))
        line('bound listens', lambda: (s.listen(), new().connect(s.getsockname()), s.accept()[1][0])[2])
    with listening() as l:
        name = l.getsockname(); waits = socket.create_connection(name)
        line('unspecified listening', lambda: calls('connect', l, unspecified))
        line('listens no more', lambda: (l.getsockopt(SOL, socket.SO_ACCEPTCONN), l.getsockname() == name))
        line('accepts no more', lambda: l.accept())
        line('nobody listens', lambda: new().connect(name))
        with listening() as other:
            line('who listened connects', lambda: (l.connect(other.getsockname()), other.accept()[1] == name))
        waits.close()

def half_close():
    c, a = pair()
    c.sendall(b'question'); c.shutdown(socket.SHUT_WR)
    line('half: reads', lambda: (a.recv(100), a.recv(100)))
    a.sendall(b'answer'); a.close()
    line('half: answered', lambda: (c.recv(100), c.recv(100)))
    line('half: sends', lambda: c.send(b'x', socket.MSG_NOSIGNAL))
    c.close()
    c, a = pair(V6)
    c.shutdown(socket.SHUT_RD); line('read shut', lambda: c.recv(1))
    line('read shut sends', lambda: (c.send(b'x'), a.recv(1)))
    c.close(); a.close()
    c, a = pair()
    a.close()
    line('closed: reads', lambda: c.recv(1))
    def broken():
        for _ in range(5):
            c.send(b'x', socket.MSG_NOSIGNAL); time.sleep(0.02)
    line('closed: sends', broken)
    c.close()
    c, a = pair()
    hits = []
    old = signal.signal(signal.SIGPIPE, lambda *_: hits.append(1))
    a.close()
    def piped():
        for _ in range(5): c.send(b'x'); time.sleep(0.02)
    line('SIGPIPE', piped); line('SIGPIPE came', lambda: len(hits) > 0)
    signal.signal(signal.SIGPIPE, old); c.close()
    c, a = pair()
    c.shutdown(socket.SHUT_RDWR)
    line('both shut', lambda: (c.recv(1), a.recv(1)))
    line('both shut peer', lambda: port_word(a.getpeername()))
    c.close(); a.close()

def shut_listener():
    l = listening()
    said = []
    def waits():
        try: l.accept()
        except OSError as error: said.append(named(error))
    thread = threading.Thread(target=waits, daemon=True); thread.start(); time.sleep(0.1)
    line('shut listener', lambda: l.shutdown(socket.SHUT_RD))
    thread.join(3)
    line('who waited', lambda: said)
    l.setblocking(False)
    line('accept after', lambda: l.accept())
    line('connect after', lambda: new().connect(l.getsockname()))

def data():
    c, a = pair()
    c.sendall(b'abcdef')
    line('peek', lambda: (a.recv(3, socket.MSG_PEEK), a.recv(100, socket.MSG_PEEK), a.recv(2), a.recv(100)))
    line('dontwait', lambda: a.recv(1, socket.MSG_DONTWAIT))
    threading.Timer(0.05, lambda: (c.sendall(b'12'), time.sleep(0.05), c.sendall(b'34'))).start()
    line('waitall', lambda: a.recv(4, socket.MSG_WAITALL))
    c.sendall(b'xyz'); time.sleep(0.02)
    line('FIONREAD', lambda: struct.unpack('i', fcntl.ioctl(a, 0x541B, bytes(4)))[0])
    line('recvmsg', lambda: a.recvmsg(10, 100)[:3])
    line('recvfrom', lambda: (c.send(b'q'), a.recvfrom(10)))
    line('sendto with a name', lambda: (c.sendto(b'r', (V4, 9)), a.recv(10)))
    line('sendmsg', lambda: (c.sendmsg([b's', b't']), a.recv(10, socket.MSG_WAITALL) if False else a.recv(2, socket.MSG_WAITALL)))
    whole = os.urandom(3_000_000)
    threading.Thread(target=lambda: (c.sendall(whole), c.shutdown(1))).start()
    came = b''
    while piece := a.recv(1 << 16): came += piece
    line('3 MB', lambda: came == whole)
    c.close(); a.close()
    c, a = pair()
    c.setblocking(False)
    def fills():
        total = 0
        while total < 200_000_000: total += c.send(bytes(65536))
        return 'no end'
    line('fills up', fills)
    c.close(); a.close()
    c, a = pair()
    read, write = os.pipe(); os.write(write, b'spliced')
    line('splice', lambda: (os.splice(read, c.fileno(), 7) if hasattr(os, 'splice') else 7, a.recv(10) if hasattr(os, 'splice') else b'spliced'))
    with open('/etc/passwd', 'rb') as f:
        size = os.fstat(f.fileno()).st_size
        line('sendfile', lambda: os.sendfile(c.fileno(), f.fileno(), 0, size) == size)
        line('sendfile came', lambda: a.recv(size, socket.MSG_WAITALL) == f.read())
    a.settimeout(0.1); line('times out', lambda: a.recv(1))
    a.settimeout(None)
    a.setsockopt(SOL, socket.SO_RCVTIMEO, struct.pack('ll', 0, 50_000)); line('SO_RCVTIMEO', lambda: a.recv(1))
    c.close(); a.close()

def options():
    for family in socket.AF_INET, socket.AF_INET6:
        six = 'v6' if family == socket.AF_INET6 else 'v4'
        with new(family) as s:
            for name in 'SO_TYPE SO_DOMAIN SO_PROTOCOL SO_ERROR SO_ACCEPTCONN SO_REUSEADDR SO_REUSEPORT SO_KEEPALIVE SO_BROADCAST SO_OOBINLINE SO_PRIORITY'.split():
                line(f'{six} {name}', lambda: s.getsockopt(SOL, getattr(socket, name)))
            line(f'{six} SO_LINGER', lambda: s.getsockopt(SOL, socket.SO_LINGER, 8))
            for name in 'TCP_NODELAY TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_DEFER_ACCEPT TCP_USER_TIMEOUT TCP_SYNCNT TCP_LINGER2 TCP_QUICKACK TCP_FASTOPEN TCP_NOTSENT_LOWAT'.split():
                line(f'{six} {name}', lambda: s.getsockopt(TCP, getattr(socket, name)))
            for level, name, value in [(SOL, 'SO_REUSEADDR', 1), (SOL, 'SO_REUSEPORT', 1), (SOL, 'SO_KEEPALIVE', 1), (TCP, 'TCP_NODELAY', 1),
                    (TCP, 'TCP_KEEPIDLE', 30), (TCP, 'TCP_KEEPINTVL', 5), (TCP, 'TCP_KEEPCNT', 4), (TCP, 'TCP_USER_TIMEOUT', 9000), (TCP, 'TCP_CORK', 1), (TCP, 'TCP_QUICKACK', 0),
                    (TCP, 'TCP_KEEPIDLE', 0), (TCP, 'TCP_KEEPCNT', 200), (SOL, 'SO_PRIORITY', 3), (SOL, 'SO_OOBINLINE', 1)]:
                line(f'{six} sets {name} {value}', lambda: (s.setsockopt(level, getattr(socket, name), value), s.getsockopt(level, getattr(socket, name)))[1])
            line(f'{six} sets SO_LINGER', lambda: (s.setsockopt(SOL, socket.SO_LINGER, struct.pack('ii', 1, 7)), s.getsockopt(SOL, socket.SO_LINGER, 8))[1])
            line(f'{six} short value', lambda: s.setsockopt(TCP, socket.TCP_KEEPIDLE, b'\1'))
            line(f'{six} empty value', lambda: s.setsockopt(SOL, socket.SO_REUSEADDR, b''))
            line(f'{six} no such option', lambda: s.getsockopt(TCP, 250))
            line(f'{six} no such SOL option', lambda: s.getsockopt(SOL, 250))
            line(f'{six} no such level', lambda: s.getsockopt(77, 1))
            line(f'{six} sets type', lambda: s.setsockopt(SOL, socket.SO_TYPE, 1))
            line(f'{six} IP_TOS', lambda: (s.setsockopt(0, socket.IP_TOS, 16), s.getsockopt(0, socket.IP_TOS))[1])
            line(f'{six} IP_TTL', lambda: (s.setsockopt(0, socket.IP_TTL, 33), s.getsockopt(0, socket.IP_TTL))[1])
            line(f'{six} IP_OPTIONS', lambda: s.getsockopt(0, socket.IP_OPTIONS, 40))
            line(f'{six} V6ONLY', lambda: s.getsockopt(41, socket.IPV6_V6ONLY))
            line(f'{six} sets V6ONLY', lambda: (s.setsockopt(41, socket.IPV6_V6ONLY, 1), s.getsockopt(41, socket.IPV6_V6ONLY))[1])
            line(f'{six} SO_BINDTODEVICE', lambda: s.getsockopt(SOL, 25, 16))
            line(f'{six} congestion', lambda: len(s.getsockopt(TCP, socket.TCP_CONGESTION, 16)))
    c, a = pair()
    line('TCP_INFO state', lambda: c.getsockopt(TCP, socket.TCP_INFO, 104)[0])
    with new() as s:
        s.bind((V4, 0)); s.listen(5); waits = [socket.create_connection(s.getsockname()) for _ in range(3)]
        line('TCP_INFO listening', lambda: struct.unpack('II', s.getsockopt(TCP, socket.TCP_INFO, 104)[24:32]))
        for it in waits: it.close()
    line('TCP_MAXSEG', lambda: c.getsockopt(TCP, socket.TCP_MAXSEG) > 500)
    line('accepted type', lambda: (a.getsockopt(SOL, socket.SO_TYPE), a.getsockopt(SOL, socket.SO_DOMAIN), a.getsockopt(SOL, socket.SO_PROTOCOL), a.getsockopt(SOL, socket.SO_ACCEPTCONN)))
    line('SO_PEERCRED', lambda: struct.unpack('iii', c.getsockopt(SOL, socket.SO_PEERCRED, 12)))
    line('buffers', lambda: (c.setsockopt(SOL, socket.SO_SNDBUF, 50000), c.setsockopt(SOL, socket.SO_RCVBUF, 50000)))
    line('V6ONLY late', lambda: new(socket.AF_INET6).setsockopt(41, socket.IPV6_V6ONLY, 0))
    c.close(); a.close()
    with new() as s:
        s.setsockopt(TCP, socket.TCP_NODELAY, 1); s.setsockopt(SOL, socket.SO_KEEPALIVE, 1); s.bind((V4, 0)); s.listen(4)
        line('listener accepts', lambda: s.getsockopt(SOL, socket.SO_ACCEPTCONN))
        with new() as c:
            c.connect(s.getsockname()); a, _ = s.accept()
            line('inherited', lambda: (a.getsockopt(TCP, socket.TCP_NODELAY), a.getsockopt(SOL, socket.SO_KEEPALIVE)))
            a.close()

def reuse():
    def two(first, second, *addresses):
        made = []
        try:
            for address, wants in zip(addresses, (first, second)):
                s = new(socket.AF_INET6 if ':' in address else socket.AF_INET); made.append(s)
                for option in wants: s.setsockopt(*option)
                s.bind((address, made[0].getsockname()[1] if len(made) > 1 else 0))
                s.listen(5)
            return 'both'
        finally:
            for s in made: s.close()
    addr, port = (SOL, socket.SO_REUSEADDR, 1), (SOL, socket.SO_REUSEPORT, 1)
    only = (41, socket.IPV6_V6ONLY, 1)
    for name, first, second in [('none', [], []), ('address', [addr], [addr]), ('port', [port], [port]), ('one port', [], [port])]:
        line(f'two listen, {name}', lambda: two(first, second, V4, V4))
        line(f'any and one, {name}', lambda: two(first, second, '0.0.0.0', V4))
        line(f'other addresses, {name}', lambda: two(first, second, '127.0.0.1', V4))
        line(f'v6 and v4, {name}', lambda: two(first, second, '::', '0.0.0.0'))
    line('v6 only and v4', lambda: two([only], [], '::', '0.0.0.0'))
    # Two bind, one listens.
    a, b = new(), new()
    for s in a, b: s.setsockopt(*addr)
    a.bind((V4, 0)); line('binds too', lambda: b.bind(a.getsockname()))
    a.listen(1); line('listens too', lambda: b.listen(1))
    a.close(); b.close()
    # A server starts again while its connections are still there.
    l = new(); l.setsockopt(*addr); l.bind((V4, 0)); l.listen(4); at = l.getsockname()
    c = new(); c.connect(at); a, _ = l.accept(); l.close()
    n = new(); line('again without', lambda: n.bind(at)); n.close()
    n = new(); n.setsockopt(*addr); line('again with', lambda: (n.bind(at), n.listen(1)))
    d = new(); line('and answers', lambda: (d.connect(at), n.accept()[0].close(), d.recv(1)))
    for s in c, a, n, d: s.close()
    # Both of two that share a port get some.
    a, b = new(), new()
    for s in a, b: s.setsockopt(*port)
    a.bind((V4, 0)); b.bind(a.getsockname()); a.listen(200); b.listen(200)
    many = []
    for _ in range(60):
        s = new(); s.connect(a.getsockname()); many.append(s)
    counts = []
    for s in a, b:
        s.setblocking(False); n = 0
        try:
            while True: many.append(s.accept()[0]); n += 1
        except BlockingIOError: counts.append(n)
    line('shared port', lambda: (sum(counts), all(counts)))
    for s in many + [a, b]: s.close()

def backlog():
    l = listening(backlog=2)
    made, done = [], []
    # As many as Linux keeps for a backlog of 2.
    for _ in range(3):
        s = new(); s.setblocking(False); made.append((s, s.connect_ex(l.getsockname())))
    line('none refused', lambda: all(e in (0, errno.EINPROGRESS) for _, e in made))
    for _ in made:
        a, _ = l.accept(); a.sendall(b'welcome'); done.append(a)
    def welcomed(s):
        select.select([s], [], [], 10); return s.recv(10)
    line('all come', lambda: [welcomed(s) for s, _ in made])
    for s in [s for s, _ in made] + done + [l]: s.close()
    # More: those that are not to block do not, and none is refused.
    l = listening(backlog=1); made = []
    for _ in range(6):
        s = new(); s.setblocking(False); made.append((s, s.connect_ex(l.getsockname())))
    line('more than the backlog', lambda: all(e in (0, errno.EINPROGRESS) for _, e in made))
    for s in [s for s, _ in made] + [l]: s.close()
    # Who waits before it is accepted can send already.
    with listening() as l, new() as c:
        c.connect(l.getsockname()); c.sendall(b'early'); c.close()
        a, _ = l.accept(); line('early', lambda: (a.recv(100), a.recv(100))); a.close()
    # A listener closes with connections in its queue.
    l = listening(); c = new(); c.connect(l.getsockname()); l.close()
    line('unaccepted', lambda: c.recv(1)); c.close()

def blocking():
    l = listening(); l.setblocking(False)
    line('nobody to accept', lambda: l.accept())
    with new() as c:
        c.connect(l.getsockname()); a, _ = l.accept()
        line('accepted blocks', lambda: (fcntl.fcntl(a, fcntl.F_GETFL) & os.O_NONBLOCK, fcntl.fcntl(a, fcntl.F_GETFD))); a.close()
    l.setblocking(True)
    class Alarm(Exception): pass
    def alarmed(*_): raise Alarm
    old = signal.signal(signal.SIGALRM, alarmed)
    def interrupted(of):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try: of(); return 'returned'
        except Alarm: return 'EINTR'
    line('accept interrupted', lambda: interrupted(l.accept))
    line('again', lambda: interrupted(l.accept))
    c, a = pair(); line('recv interrupted', lambda: interrupted(lambda: a.recv(1)))
    # A handler that returns: accept goes on and gets what comes after.
    hits = []
    signal.signal(signal.SIGALRM, lambda *_: hits.append(1)); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.02)
    late = new(); threading.Timer(1.5, lambda: late.connect(l.getsockname())).start()
    def goes_on():
        with l.accept()[0]: return len(hits) > 2
    line('accept goes on', goes_on)
    signal.setitimer(signal.ITIMER_REAL, 0); signal.signal(signal.SIGALRM, old)
    for s in c, a, l, late: s.close()
    # A non-blocking connect, to its end by poll.
    l = listening(); s = new(); s.setblocking(False)
    s.connect_ex(l.getsockname())
    p = select.poll(); p.register(s, select.POLLOUT)
    line('connect polled', lambda: (p.poll(5000)[0][1], s.getsockopt(SOL, socket.SO_ERROR), s.getpeername() == l.getsockname()))
    s.close(); port = l.getsockname()[1]; l.close()
    s = new(); s.setblocking(False)
    def fails():
        error = s.connect_ex((V4, port))
        if error == errno.EINPROGRESS: select.select([], [s], [], 5); error = s.getsockopt(SOL, socket.SO_ERROR)
        return errno.errorcode[error]
    line('connect fails in the end', fails); s.close()
    # SOCK_NONBLOCK and SOCK_CLOEXEC of socket and accept.
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0)
    line('flags', lambda: (bool(fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK), fcntl.fcntl(s, fcntl.F_GETFD))); s.close()

def readiness():
    def events(poll, wait=0): return sorted(e for _, e in poll.poll(wait))
    l = listening()
    p, e = select.poll(), select.epoll()
    p.register(l, select.POLLIN | select.POLLOUT); e.register(l, select.EPOLLIN | select.EPOLLET)
    line('listener idle', lambda: (events(p), events(e)))
    c = new(); c.connect(l.getsockname())
    line('listener ready', lambda: (events(p, 1000), events(e, 1)))
    line('listener ready once', lambda: (events(p), events(e)))
    a, _ = l.accept()
    line('listener idle again', lambda: (events(p), events(e)))
    p, e = select.poll(), select.epoll()
    every = select.POLLIN | select.POLLOUT | select.POLLRDHUP | select.POLLPRI
    p.register(a, every); e.register(a, every)
    line('connection idle', lambda: (events(p), events(e)))
    c.sendall(b'x'); time.sleep(0.02); line('connection readable', lambda: (events(p), events(e)))
    a.recv(1); c.shutdown(socket.SHUT_WR); time.sleep(0.02)
    line('connection half shut', lambda: (events(p), events(e)))
    a.shutdown(socket.SHUT_WR); time.sleep(0.02); line('connection all shut', lambda: (events(p), events(e)))
    for s in c, a, l: s.close()
    # Registered before it is connected: the registration lasts.
    l = listening(); s = new(); s.setblocking(False); e = select.epoll()
    e.register(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    s.connect_ex(l.getsockname()); a, _ = l.accept(); a.sendall(b'hello')
    def both():
        seen, end = 0, time.monotonic() + 5
        while seen & 5 != 5 and time.monotonic() < end:
            for _, event in e.poll(1): seen |= event
        return seen & 5, s.recv(10)
    line('registered before', both)
    for x in s, a, l: x.close()
    p = select.poll(); s = new(); p.register(s, select.POLLIN | select.POLLOUT)
    line('fresh', lambda: events(p)); s.close()
    # Who waits in poll when a connection comes wakes up.
    l = listening(); c = new()
    threading.Timer(0.1, lambda: c.connect(l.getsockname())).start()
    line('wakes up', lambda: select.select([l], [], [], 5)[0] == [l]); c.close(); l.close()

def shared():
    # A listener of many processes, and of two descriptors.
    l = listening(); copy = socket.socket(fileno=os.dup(l.fileno()))
    copy.settimeout(None)
    children = []
    for n in range(3):
        if (pid := os.fork()) == 0:
            a, _ = (copy if n else l).accept(); a.sendall(b'child'); os._exit(0)
        children.append(pid)
    answers = []
    for _ in children:
        with new() as c: c.connect(l.getsockname()); answers.append(c.recv(10))
    line('children accept', lambda: answers)
    line('children end', lambda: [os.waitpid(pid, 0)[1] for pid in children])
    at = l.getsockname(); l.close()
    with new() as c:
        c.connect(at); a, _ = copy.accept(); line('the copy listens', lambda: a.getpeername() == c.getsockname()); a.close()
    copy.close(); line('nobody listens', lambda: new().connect(at))
    # A connection that a child goes on with, as programs of inetd do, after exec.
    c, a = pair()
    os.set_inheritable(a.fileno(), True)
    if (pid := os.fork()) == 0:
        os.dup2(a.fileno(), 0); os.dup2(a.fileno(), 1)
        os.execvp('tr', ['tr', 'a-z', 'A-Z'])
    a.close(); c.sendall(b'small'); c.shutdown(1)
    line('a filter', lambda: c.recv(100)); os.waitpid(pid, 0); c.close()
    # Made by a child, used by its parent after the child's end.
    mine, theirs = socket.socketpair()
    with listening() as l:
        if (pid := os.fork()) == 0:
            s = new(); s.connect(l.getsockname()); socket.send_fds(theirs, [b'x'], [s.fileno()]); os._exit(0)
        os.waitpid(pid, 0); _, fds, _, _ = socket.recv_fds(mine, 1, 1)
        s = socket.socket(fileno=fds[0]); a, who = l.accept()
        line('handed over', lambda: (s.getsockname() == who, s.getpeername() == l.getsockname(), s.family == socket.AF_INET, a.send(b'x'), s.recv(1)))
        s.close(); a.close()

def kinds():
    for name, arguments in [('stream 6', (2, 1, 6)), ('stream 0', (2, 1, 0)), ('stream 17', (2, 1, 17)), ('stream 99', (2, 1, 99)),
            ('six', (10, 1, 6)), ('kind 0', (2, 0, 0)), ('kind 9', (2, 9, 0)), ('family 44 999', (999, 1, 0)), ('negative', (-1, 1, 0)), ('mptcp', (2, 1, 262))]:
        def made():
            import ctypes
            fd = ctypes.CDLL(None, use_errno=True).socket(*arguments)
            if fd < 0: return errno.errorcode[ctypes.get_errno()]
            os.close(fd); return 'made'
        line(f'socket {name}', made)
    line('socketpair', lambda: socket.socketpair(socket.AF_INET, socket.SOCK_STREAM))
    with new() as s:
        for name in 'getsockname', 'getpeername': line(f'{name} of a file', lambda: calls_on_file(name))
        line('unix stays', lambda: (lambda p: (p[0].send(b'x'), p[1].recv(1), p[0].getsockname(), p[0].getsockopt(SOL, socket.SO_DOMAIN)))(socket.socketpair()))
    l = socket.socket(socket.AF_UNIX); l.bind('\0mine'); l.listen()
    u = socket.socket(socket.AF_UNIX); u.connect('\0mine'); a, _ = l.accept()
    line('unix names', lambda: (u.getpeername(), a.getsockname(), struct.unpack('iii', u.getsockopt(SOL, socket.SO_PEERCRED, 12))[0] == os.getpid()))
    for x in l, u, a: x.close()

def calls_on_file(name):
    import ctypes
    lib = ctypes.CDLL(None, use_errno=True)
    length = ctypes.c_int(100)
    with open('/dev/null') as f:
        if getattr(lib, name)(f.fileno(), ctypes.create_string_buffer(100), ctypes.byref(length)) < 0:
            return errno.errorcode[ctypes.get_errno()]

for part in names, refused, addresses, half_close, shut_listener, data, options, reuse, backlog, blocking, readiness, shared, kinds:
    # What hangs ends with its part's name.
    print(f'== {part.__name__}', flush=True)
    child = os.fork()
    if child == 0:
        threading.Timer(60, lambda: (print('HANGS', flush=True), os._exit(1))).start()
        try: part()
        except BaseException as error: print('FAILS', type(error).__name__, error, error.__traceback__.tb_next.tb_lineno if error.__traceback__.tb_next else '', flush=True)
        os._exit(0)
    os.waitpid(child, 0)
