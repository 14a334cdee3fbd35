//! Which cores switches have for themselves, and which are left for everybody else.
//! Said by the supervisor to the controller in one word, so that both refuse alike.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeSet;

/// Cores in groups that share one physical core: a core with its siblings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores(Vec<BTreeSet<u32>>);

impl Cores {
    /// From each core with its siblings, in any order, each as often as it comes.
    pub fn new(groups: impl IntoIterator<Item = BTreeSet<u32>>) -> Cores {
        let groups: BTreeSet<_> = groups.into_iter().filter(|g| !g.is_empty()).collect();
        Cores(groups.into_iter().collect())
    }

    /// Whether there is such a core, as far as anything is known.
    pub fn has(&self, core: u32) -> bool {
        self.0.is_empty() || self.0.iter().any(|group| group.contains(&core))
    }

    /// The cores that are neither isolated nor siblings of one that is.
    pub fn rest(&self, isolated: &BTreeSet<u32>) -> BTreeSet<u32> {
        let free = self.0.iter().filter(|group| group.is_disjoint(isolated));
        free.flatten().copied().collect()
    }

    /// Whether these cores can be isolated together, each for the one named; who has several
    /// may have siblings among them.
    ///
    /// # Errors
    /// A sentence: there is no such core, it is a sibling of another's, or none is left
    /// for everybody else.
    pub fn check<'n>(
        &self,
        isolated: impl IntoIterator<Item = (u32, &'n str)>,
    ) -> Result<(), String> {
        let mut taken: Vec<(u32, &str)> = Vec::new();
        for (core, name) in isolated {
            if !self.has(core) {
                return Err(format!(
                    "{name} is to have core {core}, which this host does not have or Bulkhead may not use"
                ));
            }
            let group = self.0.iter().find(|group| group.contains(&core));
            let other = taken.iter().find(|(other, owner)| {
                *owner != name && group.is_some_and(|group| group.contains(other))
            });
            if let Some((other, owner)) = other {
                return Err(format!(
                    "{name} is to have core {core}, which shares a physical core with core {other} of {owner}: isolated switches share neither"
                ));
            }
            taken.push((core, name));
        }
        let taken = taken.into_iter().map(|(core, _)| core).collect();
        if !self.0.is_empty() && self.rest(&taken).is_empty() {
            return Err("no core is left for the fabric and the other processes: isolate fewer; an isolated core takes its siblings along".to_owned());
        }
        Ok(())
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self
            .0
            .iter()
            .map(|group| {
                let cores: Vec<String> = group.iter().map(u32::to_string).collect();
                cores.join("+")
            })
            .collect();
        f.write_str(&groups.join(","))
    }
}

impl FromStr for Cores {
    type Err = core::num::ParseIntError;

    fn from_str(text: &str) -> Result<Cores, Self::Err> {
        let groups = text.split(',').filter(|group| !group.is_empty());
        let groups: Result<Vec<BTreeSet<u32>>, _> = groups
            .map(|group| group.split('+').map(str::parse).collect())
            .collect();
        groups.map(Cores::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_isolated_keeps_core_and_siblings_from_the_rest() {
        let cores: Cores = "0+4,1+5,2+6".parse().unwrap();
        assert_eq!(cores.to_string().parse(), Ok(cores.clone()));
        assert_eq!(cores.rest(&[5, 0].into()), [2, 6].into());
        assert_eq!(cores.check([(5, "red"), (0, "blue")]), Ok(()));
        assert_eq!(cores.rest(&BTreeSet::new()).len(), 6);
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let cores: Cores = "0+2,1".parse().unwrap();
        let why = |isolated: &[(u32, &'static str)]| cores.check(isolated.iter().copied());
        for (isolated, sentence) in [
            ([(7, "red"), (1, "blue")], "core 7"),
            ([(0, "red"), (2, "blue")], "of red"),
            ([(0, "red"), (1, "blue")], "no core is left"),
        ] {
            let refused = why(&isolated).unwrap_err();
            assert!(refused.contains(sentence), "{refused}");
        }
        // Siblings of its own are taken along anyway.
        assert_eq!(cores.check([(0, "red"), (2, "red")]), Ok(()));
        let all = cores.check([(0, "red"), (1, "red")]).unwrap_err();
        assert!(all.contains("no core is left"), "{all}");
        // Of an unknown host nothing is refused.
        assert_eq!(Cores::default().check([(9, "red")]), Ok(()));
    }
}
