//! One connection of a front end, from its first request to its last.

use crate::features;
use crate::protocol;
use crate::request::{
    Fault, Header, Inflight, Log, MemoryRegion, REPLY, Request, SingleRegion, VERSION,
    VringAddress, VringState, shaped,
};
use guard::guard;
use virtqueue::{Layout, MAX_SIZE, Stand};
use zerocopy::IntoBytes;

/// Regions of memory at most.
const REGIONS: usize = 8;
/// In a kick's or call's number: there is no descriptor.
const NO_DESCRIPTOR: u64 = 1 << 8;
/// And the queue's number.
const QUEUE: u64 = 0xff;
/// Bytes of what a front end keeps for its next connection: that it has it is what counts.
const KEPT_BYTES: u64 = 4096;
/// Of QEMU's request for that, bytes: it leaves the padding out.
const INFLIGHT_BYTES: usize = 20;

/// It could not be done: the reason is the device's to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed;

/// A queue as it is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSetup {
    /// Its number: of those that the guest receives by even, of those that it sends by odd.
    pub queue: u32,
    /// Where its rings lie: guest-physical addresses.
    pub layout: Layout,
    /// Where it goes on; `None`: where it was, which the device itself has noted.
    pub stand: Option<Stand>,
    /// Where the front end has said that it begins. One that has lost its connection may
    /// not know better and say the same again.
    pub said: Stand,
}

/// What is answered, header and all, and the descriptor beside it.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<Fd> {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Most have none.
    pub fd: Option<Fd>,
}

/// Who maps the memory and runs the queues. When a method returns, it is done.
pub trait Device {
    /// A descriptor.
    type Fd;
    /// Whether this connection's memory is mapped: another's may have come in its place.
    fn is_mapped(&self) -> bool;
    /// Maps this memory, in place of what is mapped. No queue runs.
    ///
    /// # Errors
    /// It cannot be mapped.
    fn map(&mut self, features: u64, regions: &[(MemoryRegion, Self::Fd)]) -> Result<(), Failed>;
    /// Unmaps it. No queue runs.
    fn unmap(&mut self);
    /// Runs a queue.
    ///
    /// # Errors
    /// Its rings cannot be used.
    fn run(&mut self, setup: &QueueSetup, kick: Option<&Self::Fd>) -> Result<(), Failed>;
    /// Stops a queue; where it was.
    fn halt(&mut self, queue: u32) -> Stand;
    /// Notes pages that are written from now on, or no longer.
    ///
    /// # Errors
    /// The file cannot be mapped.
    fn log(&mut self, size: u64, offset: u64, fd: Option<&Self::Fd>) -> Result<(), Failed>;
    /// What calls a queue's driver from now on.
    fn call(&mut self, queue: u32, fd: Option<Self::Fd>);
    /// A new file of so many bytes, by which its front end is known when it comes again.
    ///
    /// # Errors
    /// There is none.
    fn keepsake(&mut self, bytes: u64) -> Result<Self::Fd, Failed>;
    /// The front end has this one.
    fn knows(&mut self, keepsake: &Self::Fd);
}

/// A queue as the front end set it up.
struct Queue<Fd> {
    size: u16,
    /// In the front end's own addresses.
    rings: Option<VringAddress>,
    stand: Option<Stand>,
    said: Option<Stand>,
    kick: Option<Fd>,
    /// A kick was said, be it that there is none.
    started: bool,
    enabled: bool,
    running: bool,
}

impl<Fd> Default for Queue<Fd> {
    fn default() -> Queue<Fd> {
        Queue {
            size: 0,
            rings: None,
            stand: None,
            said: None,
            kick: None,
            started: false,
            enabled: false,
            running: false,
        }
    }
}

/// A connection.
pub struct Session<Fd> {
    offered: u64,
    features: u64,
    protocol: u64,
    status: u64,
    regions: Vec<(MemoryRegion, Fd)>,
    queues: Vec<Queue<Fd>>,
    /// Where written pages are noted: size, offset.
    log: Option<(u64, u64, Fd)>,
}

/// What is answered.
enum Answer<Fd> {
    /// Nothing, unless it was asked for: then whether it could be done.
    Done(Result<(), Failed>),
    /// A number.
    Number(u64),
    /// A queue's position.
    Vring(VringState),
    /// Nothing: the request's own answer is that it was understood.
    Log,
    /// Something to keep.
    Keepsake(Inflight, Fd),
}

impl<Fd> Session<Fd> {
    /// A connection that has said nothing, of a device with so many pairs of queues that
    /// offers so much of [`features::OFFERED`].
    pub fn new(pairs: u32, offered: u64) -> Session<Fd> {
        Session {
            offered: offered & features::OFFERED,
            features: 0,
            protocol: 0,
            status: 0,
            regions: Vec::new(),
            queues: (0..2 * pairs).map(|_| Queue::default()).collect(),
            log: None,
        }
    }

    /// Whether one of its queues runs.
    pub fn runs(&self) -> bool {
        self.queues.iter().any(|queue| queue.running)
    }

    /// Does what a request asks; what is to be answered, header and all.
    ///
    /// # Errors
    /// [`Fault`]: the connection is over; the caller unmaps.
    pub fn handle<D: Device<Fd = Fd>>(
        &mut self,
        device: &mut D,
        header: Header,
        payload: &[u8],
        fds: Vec<Fd>,
    ) -> Result<Option<Reply<Fd>>, Fault> {
        let request = Request::from_number(header.request).ok_or(Fault::Unknown(header.request))?;
        let answer = self.answer(device, request, payload, fds)?;
        let reply = |payload: &[u8], fd: Option<Fd>| {
            let header = Header {
                request: header.request,
                flags: VERSION | REPLY,
                size: payload.len() as u32,
            };
            let mut bytes = header.as_bytes().to_vec();
            bytes.extend_from_slice(payload);
            Some(Reply { bytes, fd })
        };
        let acknowledges = self.protocol & protocol::REPLY_ACK != 0 && header.wants_reply();
        Ok(match answer {
            Answer::Number(number) => reply(&number.to_ne_bytes(), None),
            Answer::Vring(state) => reply(state.as_bytes(), None),
            Answer::Log => reply(&[], None),
            // As long as it was asked.
            Answer::Keepsake(kept, fd) => reply(
                kept.as_bytes().get(..payload.len()).unwrap_or(&[]),
                Some(fd),
            ),
            Answer::Done(done) if acknowledges => {
                reply(&u64::from(done.is_err()).to_ne_bytes(), None)
            }
            Answer::Done(_) => None,
        })
    }

    fn answer<D: Device<Fd = Fd>>(
        &mut self,
        device: &mut D,
        request: Request,
        payload: &[u8],
        mut fds: Vec<Fd>,
    ) -> Result<Answer<Fd>, Fault> {
        let descriptors = |wanted: bool| match wanted {
            true => Ok(()),
            false => Err(Fault::Descriptors {
                request: request as u32,
                count: fds.len(),
            }),
        };
        // What comes beside a request that has none is closed, and was never wanted.
        match request {
            Request::SetMemTable
            | Request::AddMemReg
            | Request::RemMemReg
            | Request::SetLogBase
            | Request::SetLogFd
            | Request::SetInflightFd
            | Request::SetVringKick
            | Request::SetVringCall
            | Request::SetVringErr => {}
            _ => descriptors(fds.is_empty())?,
        }
        let number = || shaped::<u64>(request, payload);
        let vring = || shaped::<VringState>(request, payload);
        Ok(match request {
            Request::GetFeatures => Answer::Number(self.offered),
            Request::SetFeatures => Answer::Done(self.set_features(device, number()?)?),
            Request::SetOwner => Answer::Done(Ok(())),
            Request::GetProtocolFeatures => Answer::Number(protocol::OFFERED),
            Request::SetProtocolFeatures => {
                let taken = number()?;
                if taken & !protocol::OFFERED != 0 && guard!("vhost-protocol-features") {
                    return Err(Fault::Features(taken));
                }
                self.protocol = taken;
                Answer::Done(Ok(()))
            }
            Request::GetQueueNum => Answer::Number(self.queues.len() as u64 / 2),
            Request::GetMaxMemSlots => Answer::Number(REGIONS as u64),
            Request::SetStatus => {
                self.status = number()? & 0xff;
                if self.status == 0 {
                    self.halt_all(device);
                }
                Answer::Done(Ok(()))
            }
            Request::GetStatus => Answer::Number(self.status),
            Request::ResetDevice | Request::ResetOwner => {
                self.reset(device);
                Answer::Done(Ok(()))
            }
            Request::SetMemTable => {
                let regions = table(request, payload, fds)?;
                Answer::Done(self.set_memory(device, regions)?)
            }
            // QEMU says each region once for every pair of queues.
            Request::AddMemReg => {
                descriptors(fds.len() == 1)?;
                let region = shaped::<SingleRegion>(request, payload)?.region;
                let is_there = self.regions.iter().any(|(r, _)| *r == region);
                if is_there && guard!("vhost-region-twice") {
                    return Ok(Answer::Done(Ok(())));
                }
                let mut regions = core::mem::take(&mut self.regions);
                regions.extend(fds.pop().map(|fd| (region, fd)));
                Answer::Done(self.set_memory(device, regions)?)
            }
            Request::RemMemReg => {
                let region = shaped::<SingleRegion>(request, payload)?.region;
                let same = |(r, _): &(MemoryRegion, Fd)| {
                    (r.guest, r.size, r.user) == (region.guest, region.size, region.user)
                };
                let Some(at) = self.regions.iter().position(same) else {
                    return Ok(Answer::Done(Ok(())));
                };
                let mut regions = core::mem::take(&mut self.regions);
                regions.remove(at);
                Answer::Done(self.set_memory(device, regions)?)
            }
            Request::SetLogBase => {
                descriptors(fds.len() == 1)?;
                let log = shaped::<Log>(request, payload)?;
                self.log = fds.pop().map(|fd| (log.size, log.offset, fd));
                match self.log_again(device) {
                    Ok(()) => Answer::Log,
                    Err(Failed) => return Err(Fault::Memory),
                }
            }
            Request::GetInflightFd => {
                let asked = inflight(request, payload)?;
                let kept = Inflight {
                    size: KEPT_BYTES,
                    offset: 0,
                    ..asked
                };
                match device.keepsake(KEPT_BYTES) {
                    Ok(fd) => Answer::Keepsake(kept, fd),
                    Err(Failed) => return Err(Fault::Memory),
                }
            }
            Request::SetInflightFd => {
                descriptors(fds.len() == 1)?;
                inflight(request, payload)?;
                if let Some(keepsake) = fds.first() {
                    device.knows(keepsake);
                }
                Answer::Done(Ok(()))
            }
            // Nobody is told of written pages: the bitmap is read in its own time.
            Request::SetLogFd => {
                descriptors(fds.len() == 1)?;
                Answer::Done(Ok(()))
            }
            Request::SetVringNum => {
                let state = vring()?;
                let size = u16::try_from(state.value).ok().filter(|n| *n <= MAX_SIZE);
                let queue = self.stopped(device, state.queue)?;
                queue.size = size.filter(|n| *n > 0).ok_or(Fault::Value {
                    queue: state.queue,
                    value: state.value,
                })?;
                Answer::Done(Ok(()))
            }
            Request::SetVringAddr => {
                let rings = shaped::<VringAddress>(request, payload)?;
                self.stopped(device, rings.queue)?.rings = Some(rings);
                Answer::Done(self.start(device, rings.queue)?)
            }
            Request::SetVringBase => {
                let state = vring()?;
                let stand = self.stand(state)?;
                let queue = self.stopped(device, state.queue)?;
                (queue.stand, queue.said) = (Some(stand), Some(stand));
                Answer::Done(Ok(()))
            }
            Request::GetVringBase => {
                let state = vring()?;
                let packed = self.features & features::RING_PACKED != 0;
                let queue = self.stopped(device, state.queue)?;
                // It starts again at the next kick that is said.
                (queue.started, queue.kick) = (false, None);
                let stand = queue.stand.unwrap_or(first(packed));
                let value = match packed {
                    true => u32::from(stand.available) | u32::from(stand.used) << 16,
                    false => stand.available.into(),
                };
                device.call(state.queue, None);
                Answer::Vring(VringState {
                    queue: state.queue,
                    value,
                })
            }
            Request::SetVringKick => {
                let (n, fd) = self.vring_fd(request, number()?, fds)?;
                // Without protocol features there is nothing else to wait for.
                let is_enough = self.features & features::PROTOCOL == 0;
                let queue = self.stopped(device, n)?;
                (queue.kick, queue.started) = (fd, true);
                queue.enabled |= is_enough;
                Answer::Done(self.start(device, n)?)
            }
            Request::SetVringCall => {
                let (n, fd) = self.vring_fd(request, number()?, fds)?;
                device.call(n, fd);
                Answer::Done(Ok(()))
            }
            Request::SetVringErr => {
                self.vring_fd(request, number()?, fds)?;
                Answer::Done(Ok(()))
            }
            Request::SetVringEnable => {
                let state = vring()?;
                let queue = self.queue(state.queue)?;
                queue.enabled = state.value != 0;
                match queue.enabled {
                    true => Answer::Done(self.start(device, state.queue)?),
                    false => {
                        self.stopped(device, state.queue)?;
                        Answer::Done(Ok(()))
                    }
                }
            }
        })
    }

    fn queue(&mut self, n: u32) -> Result<&mut Queue<Fd>, Fault> {
        self.queues.get_mut(n as usize).ok_or(Fault::Queue(n))
    }

    /// A queue that does not run now.
    fn stopped<D: Device<Fd = Fd>>(
        &mut self,
        device: &mut D,
        n: u32,
    ) -> Result<&mut Queue<Fd>, Fault> {
        let queue = self.queue(n)?;
        if core::mem::take(&mut queue.running) {
            queue.stand = Some(device.halt(n));
        }
        Ok(queue)
    }

    fn halt_all<D: Device<Fd = Fd>>(&mut self, device: &mut D) {
        for n in 0..self.queues.len() as u32 {
            let _ = self.stopped(device, n);
        }
    }

    fn reset<D: Device<Fd = Fd>>(&mut self, device: &mut D) {
        self.halt_all(device);
        for (n, queue) in (0..).zip(&mut self.queues) {
            *queue = Queue::default();
            device.call(n, None);
        }
        self.status = 0;
    }

    fn set_features<D: Device<Fd = Fd>>(
        &mut self,
        device: &mut D,
        taken: u64,
    ) -> Result<Result<(), Failed>, Fault> {
        if taken & !self.offered != 0 && guard!("vhost-features") {
            return Err(Fault::Features(taken));
        }
        let changed = taken ^ self.features;
        self.features = taken;
        if taken & features::LOG_ALL == 0 && changed & features::LOG_ALL != 0 {
            self.log = None;
            // Without memory nothing is noted.
            if device.is_mapped() {
                let _ = device.log(0, 0, None);
            }
        }
        // Whether pages are noted changes nothing in how rings are run.
        if changed & !features::LOG_ALL == 0 || self.regions.is_empty() {
            return Ok(Ok(()));
        }
        let regions = core::mem::take(&mut self.regions);
        self.set_memory(device, regions)
    }

    /// Other memory: queues stop for it, and go on where they can.
    fn set_memory<D: Device<Fd = Fd>>(
        &mut self,
        device: &mut D,
        regions: Vec<(MemoryRegion, Fd)>,
    ) -> Result<Result<(), Failed>, Fault> {
        self.halt_all(device);
        device.unmap();
        if !are_apart(&regions) && guard!("vhost-memory") {
            return Err(Fault::Memory);
        }
        self.regions = regions;
        if self.regions.is_empty() {
            return Ok(Ok(()));
        }
        if self.map(device).is_err() {
            self.regions.clear();
            return Ok(Err(Failed));
        }
        for n in 0..self.queues.len() as u32 {
            if let Err(failed) = self.start(device, n)? {
                return Ok(Err(failed));
            }
        }
        Ok(Ok(()))
    }

    /// Maps the memory, whose written pages are noted if they were before.
    fn map<D: Device<Fd = Fd>>(&mut self, device: &mut D) -> Result<(), Failed> {
        device.map(self.features, &self.regions)?;
        match guard!("vhost-log-stays") {
            true => self.log_again(device),
            false => Ok(()),
        }
    }

    fn log_again<D: Device<Fd = Fd>>(&mut self, device: &mut D) -> Result<(), Failed> {
        match &self.log {
            Some((size, offset, fd)) if device.is_mapped() => device.log(*size, *offset, Some(fd)),
            _ => Ok(()),
        }
    }

    /// Says everything again to a device that knows nothing of it: where queues got, it
    /// knows itself.
    ///
    /// # Errors
    /// It cannot be done any more.
    pub fn again<D: Device<Fd = Fd>>(&mut self, device: &mut D) -> Result<(), Failed> {
        if self.regions.is_empty() {
            return Ok(());
        }
        self.map(device)?;
        for n in 0..self.queues.len() as u32 {
            let queue = self.queues.get_mut(n as usize);
            if queue.is_some_and(|queue| core::mem::take(&mut queue.running)) {
                self.start_at(device, n, None).map_err(|_| Failed)??;
            }
        }
        Ok(())
    }

    /// Runs a queue that has all that it takes, from where the front end said.
    fn start<D: Device<Fd = Fd>>(
        &mut self,
        device: &mut D,
        n: u32,
    ) -> Result<Result<(), Failed>, Fault> {
        let packed = self.features & features::RING_PACKED != 0;
        let said = self.queue(n)?.stand;
        self.start_at(device, n, Some(said.unwrap_or(first(packed))))
    }

    fn start_at<D: Device<Fd = Fd>>(
        &mut self,
        device: &mut D,
        n: u32,
        stand: Option<Stand>,
    ) -> Result<Result<(), Failed>, Fault> {
        let queue = self.queue(n)?;
        let ready = queue.started && queue.enabled && !queue.running && queue.size > 0;
        let (Some(rings), true) = (queue.rings, ready) else {
            return Ok(Ok(()));
        };
        let (size, said) = (queue.size, queue.said);
        if self.regions.is_empty() {
            return Ok(Ok(()));
        }
        if !device.is_mapped() && self.map(device).is_err() {
            return Ok(Err(Failed));
        }
        let packed = self.features & features::RING_PACKED != 0;
        let setup = QueueSetup {
            queue: n,
            layout: Layout {
                size,
                descriptors: self.physical(n, rings.descriptors)?,
                driver: self.physical(n, rings.available)?,
                device: self.physical(n, rings.used)?,
            },
            stand,
            said: said.unwrap_or(first(packed)),
        };
        let Some(queue) = self.queues.get_mut(n as usize) else {
            return Ok(Ok(()));
        };
        let ran = device.run(&setup, queue.kick.as_ref());
        queue.running = ran.is_ok();
        Ok(ran)
    }

    /// Where an address of the front end's own lies in the guest.
    fn physical(&self, queue: u32, address: u64) -> Result<u64, Fault> {
        let inside = |r: &MemoryRegion| {
            let within = address.checked_sub(r.user).filter(|n| *n < r.size)?;
            r.guest.checked_add(within)
        };
        let found = self.regions.iter().find_map(|(r, _)| inside(r));
        found.ok_or(Fault::Ring { queue, address })
    }

    fn stand(&self, state: VringState) -> Result<Stand, Fault> {
        let packed = self.features & features::RING_PACKED != 0;
        let low = state.value as u16;
        let stand = match packed {
            // Front ends that know of nothing under way leave the other half out (DPDK's
            // virtio-user).
            true => Stand {
                available: low,
                used: match (state.value >> 16) as u16 {
                    0 => low,
                    used => used,
                },
            },
            // What is used stands in the ring; both are the same when a queue stops.
            false => Stand {
                available: low,
                used: low,
            },
        };
        if !packed && state.value > 0xffff {
            return Err(Fault::Value {
                queue: state.queue,
                value: state.value,
            });
        }
        Ok(stand)
    }

    /// The queue that a descriptor is for.
    fn vring_fd(
        &mut self,
        request: Request,
        number: u64,
        mut fds: Vec<Fd>,
    ) -> Result<(u32, Option<Fd>), Fault> {
        let n = (number & QUEUE) as u32;
        self.queue(n)?;
        let wanted = usize::from(number & NO_DESCRIPTOR == 0);
        if number & !(QUEUE | NO_DESCRIPTOR) != 0 || fds.len() != wanted {
            return Err(Fault::Descriptors {
                request: request as u32,
                count: fds.len(),
            });
        }
        Ok((n, fds.pop()))
    }
}

/// What a front end says of what it keeps: the padding at its end is left out by some.
fn inflight(request: Request, payload: &[u8]) -> Result<Inflight, Fault> {
    let mut whole = [0; size_of::<Inflight>()];
    let fits = payload.len() == INFLIGHT_BYTES || payload.len() == whole.len();
    match whole.get_mut(..payload.len()) {
        Some(part) if fits => part.copy_from_slice(payload),
        _ => {
            return Err(Fault::Payload {
                request: request as u32,
                bytes: payload.len(),
            });
        }
    }
    shaped(request, &whole)
}

/// Where a queue begins.
fn first(packed: bool) -> Stand {
    let at = if packed { 0x8000 } else { 0 };
    Stand {
        available: at,
        used: at,
    }
}

/// A table of memory, each region with its descriptor.
fn table<Fd>(
    request: Request,
    payload: &[u8],
    fds: Vec<Fd>,
) -> Result<Vec<(MemoryRegion, Fd)>, Fault> {
    let bad = || Fault::Payload {
        request: request as u32,
        bytes: payload.len(),
    };
    let (head, rest) = payload.split_at_checked(8).ok_or_else(bad)?;
    let [count, _] = shaped::<[u32; 2]>(request, head).map_err(|_| bad())?;
    let count = count as usize;
    let size = size_of::<MemoryRegion>();
    // Some send the table at its full length, whatever counts of it.
    let used = count.checked_mul(size).and_then(|n| rest.get(..n));
    let used = used.filter(|_| count <= REGIONS).ok_or_else(bad)?;
    if fds.len() != count {
        return Err(Fault::Descriptors {
            request: request as u32,
            count: fds.len(),
        });
    }
    let regions = used
        .chunks_exact(size)
        .map(|part| shaped::<MemoryRegion>(request, part));
    let regions: Result<Vec<_>, Fault> = regions.collect();
    Ok(regions?.into_iter().zip(fds).collect())
}

/// Whether regions are few enough, of some size, and no address is in two: neither the
/// guest's nor the front end's own, by which rings are found.
fn are_apart<Fd>(regions: &[(MemoryRegion, Fd)]) -> bool {
    let list = |of: fn(&MemoryRegion) -> u64| {
        let mut spans: Vec<(u64, Option<u64>)> = regions
            .iter()
            .map(|(r, _)| (of(r), of(r).checked_add(r.size)))
            .collect();
        spans.sort_unstable();
        spans.windows(2).all(|pair| match pair {
            [(_, Some(end)), (begin, _)] => end <= begin,
            _ => false,
        }) && spans
            .iter()
            .all(|(begin, end)| end.is_some_and(|end| end > *begin))
    };
    regions.len() <= REGIONS && list(|r| r.guest) && list(|r| r.user)
}
