//! The descriptors, each under its name with a note. Under systemd each is stored
//! there as well, so that even the keeper's own death loses none.

use command::message::{ErrorCode, Name};
use command::verbs::{Done, Fetch, Forget, Keep, List};
use command::{Message, Verb};
use confine::inherited;
use sd_notify::NotifyState;
use seqpacket::{Error, Socket};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Longest wait for a supervisor that does not read the answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most names: far above what open files allow.
const MOST: usize = 1 << 18;
/// The memory file that carries the notes over the keeper's own death; its successors have a number, of
/// which the last counts.
const NOTES: &str = "keeper/notes";
/// It is written anew when it is so long, and twice as long as what is in it still counts, bytes.
const LONG: u64 = 1 << 20;

/// What is kept.
pub struct Vault {
    kept: BTreeMap<String, (OwnedFd, String)>,
    /// `name NUL note NL` for every change, the last of a name counts; only where a
    /// service manager stores descriptors.
    notes: Option<Notes>,
}

/// The name of a file of notes.
fn notes_name(number: u64) -> String {
    match number {
        0 => NOTES.to_owned(),
        number => format!("{NOTES}/{number}"),
    }
}

/// The number of one of this name.
fn notes_number(name: &str) -> Option<u64> {
    match name.strip_prefix(NOTES)? {
        "" => Some(0),
        rest => rest.strip_prefix('/')?.parse().ok(),
    }
}

struct Notes {
    file: File,
    number: u64,
    /// Bytes of it.
    length: u64,
    /// Bytes beyond which it is written anew.
    most: u64,
}

impl Notes {
    /// A new file with this text, stored in the place of another.
    fn write(number: u64, text: &str) -> std::io::Result<Notes> {
        let name = notes_name(number);
        let mut file = File::from(rustix::fs::memfd_create(
            &name,
            rustix::fs::MemfdFlags::CLOEXEC,
        )?);
        file.write_all(text.as_bytes())?;
        store(&name, file.as_fd());
        let length = text.len() as u64;
        Ok(Notes {
            file,
            number,
            length,
            most: LONG.max(length * 2),
        })
    }

    fn add(&mut self, line: &str) {
        let _ = self.file.write_all(line.as_bytes());
        self.length += line.len() as u64;
    }
}

impl Vault {
    /// Empty, or with what the service manager held for the keeper before.
    pub fn open() -> Vault {
        let mut vault = Vault {
            kept: BTreeMap::new(),
            notes: None,
        };
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return vault;
        }
        let mut files = BTreeMap::new();
        for (name, fd) in inherited::from_service_manager() {
            match notes_number(&name) {
                Some(number) => drop(files.insert(number, File::from(fd))),
                None => drop(vault.kept.insert(name, (fd, String::new()))),
            }
        }
        let mut text = String::new();
        if let Some((number, mut file)) = files.pop_last() {
            let _ = file.rewind().and_then(|()| file.read_to_string(&mut text));
            let length = text.len() as u64;
            vault.notes = Some(Notes {
                file,
                number,
                length,
                most: LONG.max(length * 2),
            });
        }
        // Their successor was stored before they were discarded.
        for number in files.into_keys() {
            discard(&notes_name(number));
        }
        for (name, note) in text.lines().filter_map(|line| line.split_once('\0')) {
            if let Some((_, kept)) = vault.kept.get_mut(name) {
                note.clone_into(kept);
            }
        }
        if vault.notes.is_none() {
            vault.write_notes(0);
        }
        vault
    }

    /// What counts, and no more.
    fn write_notes(&mut self, number: u64) {
        let all = self.kept.iter();
        let all: String = all
            .map(|(name, (_, note))| format!("{name}\0{note}\n"))
            .collect();
        match Notes::write(number, &all) {
            Ok(notes) => self.notes = Some(notes),
            Err(error) => confine::say!("keeper: no new file for notes: {error}"),
        }
    }

    /// Whether something has this name.
    pub fn has(&self, name: &str) -> bool {
        self.kept.contains_key(name)
    }

    /// Keeps a descriptor, in place of what had that name.
    pub fn keep(&mut self, name: &str, note: &str, fd: OwnedFd) {
        if let Some(notes) = &mut self.notes {
            if self.kept.contains_key(name) {
                discard(name);
            }
            store(name, fd.as_fd());
            notes.add(&format!("{name}\0{note}\n"));
        }
        self.kept.insert(name.to_owned(), (fd, note.to_owned()));
        if let Some(notes) = self.notes.as_ref().filter(|it| it.length > it.most) {
            let before = notes.number;
            self.write_notes(before + 1);
            discard(&notes_name(before));
        }
    }

    /// Carries out one request and answers it.
    ///
    /// # Errors
    /// The asker is gone, or does not read its answers.
    pub fn serve(
        &mut self,
        socket: &Socket,
        message: &Message,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        let answer =
            |message: &Message, fd: &[BorrowedFd<'_>]| socket.send_wait(message, fd, PATIENCE);
        let seq = message.seq;
        let done = Message::new(seq, &Done::default());
        if let Some(request) = message.body::<Keep>() {
            let name = request.name.as_str();
            let sound = !name.is_empty()
                && !name.contains([':', '\n'])
                && !request.note.as_str().contains('\n');
            let full = self.kept.len() >= MOST && !self.has(name);
            return match fds.into_iter().next() {
                Some(fd) if sound && !full => {
                    self.keep(name, request.note.as_str(), fd);
                    answer(&done, &[])
                }
                Some(_) if full => answer(&done.failed(ErrorCode::Limit), &[]),
                _ => answer(&done.failed(ErrorCode::BadMessage), &[]),
            };
        }
        if let Some(request) = message.body::<Fetch>() {
            return match self.kept.get(request.name.as_str()) {
                Some((fd, note)) => {
                    let note = Name::new(note).unwrap_or_default();
                    answer(
                        &Message::new(seq, &Fetch { note, ..request }),
                        &[fd.as_fd()],
                    )
                }
                None => answer(&done.failed(ErrorCode::NotFound), &[]),
            };
        }
        if let Some(request) = message.body::<Forget>() {
            let prefix = request.name.as_str();
            let exact = request.exact == 1;
            let going = |name: &String| {
                if exact {
                    name == prefix
                } else {
                    name.starts_with(prefix)
                }
            };
            let gone: Vec<String> = self
                .kept
                .keys()
                .filter(|name| going(name))
                .cloned()
                .collect();
            for name in gone {
                self.kept.remove(&name);
                if self.notes.is_some() {
                    discard(&name);
                }
            }
            return answer(&done, &[]);
        }
        if let Some(request) = message.body::<List>() {
            let prefix = request.name.as_str();
            for (name, (fd, note)) in self
                .kept
                .iter()
                .filter(|(name, _)| name.starts_with(prefix))
            {
                let note = Name::new(note).unwrap_or_default();
                let name = Name::new(name).unwrap_or_default();
                answer(&Message::new(seq, &List { name, note }), &[fd.as_fd()])?;
            }
            return answer(&done, &[]);
        }
        match Verb::from_number(message.verb) {
            // Answers to what the keeper told are no requests.
            Some(Verb::Done | Verb::Beat) => Ok(()),
            _ => answer(&done.failed(ErrorCode::BadMessage), &[]),
        }
    }
}

fn store(name: &str, fd: BorrowedFd<'_>) {
    // FDPOLL=0: a pipe whose peer is away for a moment stays.
    let state = [
        NotifyState::FdStore,
        NotifyState::FdName(name),
        NotifyState::Custom("FDPOLL=0"),
    ];
    if let Err(error) = sd_notify::notify_with_fds(&state, &[fd]) {
        confine::say!("keeper: the service manager does not store {name}: {error}");
    }
}

fn discard(name: &str) {
    let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}
