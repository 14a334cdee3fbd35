//! Answers without an end: a body fed through a bounded queue.

use axum::body::Body;
use hyper::body::{Bytes, Frame};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// Pieces that may wait for a slow reader; then its source waits too.
const WAITING: usize = 32;

/// A body, and the queue that feeds it. The queue is closed when the caller goes
/// away, the body ends when the sender is dropped.
pub fn stream() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (sender, Body::new(Queue(receiver)))
}

struct Queue(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Queue {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(context)
            .map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}
