//! Callers that stop in the middle: a body that does not come, an answer that is not read.

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::future::Future;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose peer must take some of what is written within a time. A socket takes
/// more only when its reader has made much of its buffer free, so that a byte now and
/// then is not enough.
pub struct Slow<S> {
    stream: S,
    limit: Option<Duration>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Slow<S> {
    /// With this limit, or none.
    pub fn new(stream: S, limit: Option<Duration>) -> Slow<S> {
        Slow {
            stream,
            limit,
            waiting: None,
        }
    }

    /// What became of a write: one that waits waits no longer than the limit.
    fn bounded<T>(&mut self, outcome: Poll<Result<T>>, context: &mut Context) -> Poll<Result<T>> {
        let Some(limit) = self.limit.filter(|_| outcome.is_pending()) else {
            self.waiting = None;
            return outcome;
        };
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Slow<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Slow<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        parts: &[IoSlice],
    ) -> Poll<Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // A socket keeps nothing back, so neither of these waits.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A request's body, which must have come whole within a time of being asked for.
pub struct Timed {
    body: Incoming,
    limit: Option<Duration>,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    /// With this limit, or none.
    pub fn new(body: Incoming, limit: Option<Duration>) -> Timed {
        Timed {
            body,
            limit,
            waiting: None,
        }
    }
}

impl Body for Timed {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Error::other)));
        }
        let Some(limit) = self.limit else {
            return Poll::Pending;
        };
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Some(Err(ErrorKind::TimedOut.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body, with what is kept until it has ended.
pub struct Kept<B, K> {
    body: B,
    _kept: K,
}

impl<B, K> Kept<B, K> {
    /// Of these.
    pub fn new(body: B, kept: K) -> Kept<B, K> {
        Kept { body, _kept: kept }
    }
}

impl<B: Body + Unpin, K: Unpin> Body for Kept<B, K> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<std::result::Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
