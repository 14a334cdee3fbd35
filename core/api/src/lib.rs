//! What the controller's HTTP API says: the shapes of its JSON, shared by the
//! controller that writes them and the command line that reads them.
//!
//! Fields are only ever added. A reader ignores what it does not know, and takes
//! the default for what an older writer left out.
pub mod change;
pub mod explain;
pub mod fault;
pub mod flows;
pub mod live;
pub mod state;
pub mod tenants;
pub mod trace;
pub mod usage;
pub use change::{Applied, Change, Needs, Plan, Proof, Undertaking};
pub use explain::{Explanation, Judgement, Translation, Way};
pub use fault::{Fault, Finding, Where, Whose};
pub use flows::{Circuit, Flow, Flows, Listener, Listeners, RuleCount, RuleName, Rules};
pub use live::{DropCount, EndpointRates, Happening, Sample};
pub use state::{
    Agreement, Aside, Compartment, Death, Endpoint, Half, HistoryEntry, Limit, Operator, Recorded,
    Revoked, Status, Tenant, Uplink, Vlan, Why,
};
pub use tenants::{Audit, AuditCheck, AuditEntry, NewToken, Token, Tokens};
pub use trace::{Names, Passage, Step, Traced, Traces};
pub use usage::{Usage, UsageRow};
