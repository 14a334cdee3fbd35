//! What comes just as a sleep is announced.

use super::*;

#[test]
fn what_comes_while_a_sleep_is_announced_leaves_few_tokens() {
    let pipe = Rc::new(Pipe::of(1000));
    let (memory, mut writer, mut reader) = switched(&pipe);
    let to = Rc::clone(&pipe);
    let writes = move || assert_eq!(writer.write(&*to, b"x", Full::Spills), Ok(1));
    *memory.0.announced.borrow_mut() = Some(Box::new(writes));
    for _ in 0..1000 {
        assert_eq!(read(&mut reader, &pipe, 9), Ok(b"x".to_vec()));
        // Who polls finds it readable, for there may be more than was read.
        let tokens = pipe.holds().len() / 2;
        assert!((1..=9).contains(&tokens), "{tokens}");
    }
    let writes = memory.0.announced.take();
    assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Blocked));
    assert_eq!(pipe.holds(), []);
    writes.unwrap()();
    assert!(pipe.is_readable());
    assert_eq!(read(&mut reader, &pipe, 9), Ok(b"x".to_vec()));
}

/// Also where it is said as tokens are taken that nobody looked at.
#[test]
fn what_the_kernel_says_once_is_told_when_all_is_read() {
    let pipe = Rc::new(Pipe::of(1000));
    let (memory, mut writer, mut reader) = switched(&pipe);
    let (to, turn) = (Rc::clone(&pipe), Cell::new(0));
    let writes = move || {
        assert_eq!(writer.write(&*to, b"x", Full::Spills), Ok(1));
        turn.set(turn.get() + 1);
        // Nothing is there that could be taken, and its peer is gone.
        to.bytes.borrow_mut().clear();
        to.failed.set(turn.get() == 8);
        to.ended.set(turn.get() == 8);
    };
    *memory.0.announced.borrow_mut() = Some(Box::new(writes));
    for _ in 0..8 {
        assert_eq!(read(&mut reader, &pipe, 9), Ok(b"x".to_vec()));
    }
    drop(memory.0.announced.take());
    assert!(!pipe.failed.get(), "it was said");
    assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Socket(104)));
}

/// Also of what comes as it says so, and of the token that began the ring.
#[test]
fn who_rests_with_all_read_leaves_no_token() {
    let pipe = Pipe::of(1000);
    let (_, mut writer, mut reader) = switched(&pipe);
    for turn in 0..5 {
        assert_eq!(writer.write(&pipe, b"whole", Full::Spills), Ok(5));
        assert!(pipe.is_readable(), "{turn}");
        let sends = pipe.sends.get();
        assert_eq!(read(&mut reader, &pipe, 4), Ok(b"whol".to_vec()));
        assert!(!reader.rest(&pipe));
        assert!(pipe.is_readable(), "there is something to read: {turn}");
        assert_eq!(read(&mut reader, &pipe, 1), Ok(b"e".to_vec()));
        assert!(reader.rest(&pipe));
        assert!(!pipe.is_readable(), "{turn}");
        assert!(reader.rest(&pipe));
        // The token of what was read before it came.
        pipe.bytes.borrow_mut().extend([TOKEN, 1]);
        assert!(!reader.is_ready(&pipe) && !pipe.is_readable(), "{turn}");
        assert_eq!(pipe.sends.get(), sends);
    }
    assert_eq!(writer.write(&pipe, b"a", Full::Spills), Ok(1));
    assert!(reader.is_ready(&pipe) && pipe.is_readable());
    assert_eq!(read(&mut reader, &pipe, 1), Ok(b"a".to_vec()));
    // What is wrong is told by who reads.
    pipe.bytes.borrow_mut().push_back(b'!');
    assert_eq!(writer.write(&pipe, b"a", Full::Spills), Ok(1));
    assert_eq!(read(&mut reader, &pipe, 1), Ok(b"a".to_vec()));
    reader.rest(&pipe);
    assert_eq!(read(&mut reader, &pipe, 1), Err(Stop::Peer(Breach::Frame)));
}

#[test]
fn the_head_of_a_spill_alone_is_nothing_to_read() {
    let pipe = Pipe::of(1000);
    let (_, _, mut reader) = switched(&pipe);
    assert!(reader.rest(&pipe));
    pipe.bytes.borrow_mut().extend([SPILL, 2, 0, 0, 0]);
    assert!(!reader.is_ready(&pipe) && !pipe.is_readable());
    assert!(!reader.is_ready(&pipe), "it was taken, and that is all");
    pipe.bytes.borrow_mut().push_back(b'a');
    assert!(reader.is_ready(&pipe));
    assert_eq!(read(&mut reader, &pipe, 9), Ok(b"a".to_vec()));
    assert!(!reader.is_ready(&pipe));
    // The end is something to read, and what the kernel says once is told by who reads.
    pipe.ended.set(true);
    assert!(reader.is_ready(&pipe));
    pipe.failed.set(true);
    assert!(reader.is_ready(&pipe) && !pipe.failed.get());
}

#[test]
fn who_waits_for_no_edge_is_told_of_no_byte_more() {
    let pipe = Pipe::of(1000);
    let (_, mut writer, mut reader) = switched(&pipe);
    assert_eq!(
        writer.write(&pipe, &[1; CAPACITY], Full::Spills),
        Ok(CAPACITY)
    );
    assert_eq!(writer.write(&pipe, &[2; 30], Full::Spills), Ok(30));
    assert_eq!(read(&mut reader, &pipe, 300), Ok(vec![1; CAPACITY]));
    assert_eq!(read(&mut reader, &pipe, 10), Ok(vec![2; 10]));
    let queued = || pipe.holds().len();
    for turn in 0..9 {
        assert_eq!(reader.pending(&pipe, false, queued), Ok(20), "{turn}");
    }
    let edges = |_| reader.pending(&pipe, true, queued).unwrap();
    assert_eq!([0; 4].map(edges), [20, 20, 20, 21]);
}
