//! Who may do what: the one evaluator for every path into the hub.
//!
//! Rules are tried in order, the first that matches decides, and no match is a no. An *allow* reaches dead letters and
//! snapshots only on purpose ([`TopicPattern::matches`]: `**` is every ordinary topic); a *deny* is wide
//! ([`TopicPattern::covers`]: `**` is every topic). Dead letters are a topic of their own: a deny of `a` leaves `dlq.a`.

use std::fmt;

use promethean_event::{Group, Selector, Topic, TopicPattern};
use serde::Deserialize;

/// What somebody wants to do with a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Append events.
    Publish,
    /// Read events: subscriptions, replay, export, SSE, and seeing the topic at all.
    Subscribe,
    /// Ops endpoints that change something or show payloads.
    Admin,
}

impl Action {
    /// The action as policies and scopes write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Publish => "publish",
            Action::Subscribe => "subscribe",
            Action::Admin => "admin",
        }
    }

    /// `*` is every action: `None`.
    fn parse(text: &str) -> Result<Option<Self>, Malformed> {
        match text {
            "publish" => Ok(Some(Action::Publish)),
            "subscribe" => Ok(Some(Action::Subscribe)),
            "admin" => Ok(Some(Action::Admin)),
            "*" => Ok(None),
            _ => Err(Malformed(format!("{text:?} is no action: write publish, subscribe, admin or *"))),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A policy or a scope that cannot be read. Nothing is allowed by it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Effect {
    Allow,
    Deny,
}

/// Which subscribers a rule is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Groups {
    /// All, also those without a group.
    Any,
    /// Those of the groups listed.
    Named(Box<[Box<str>]>),
}

/// One line of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    effect: Effect,
    /// `None` is every action.
    action: Option<Action>,
    topics: Box<[TopicPattern]>,
    groups: Groups,
}

impl Rule {
    fn matches(&self, action: Action, topic: &Topic, group: Option<&Group>) -> bool {
        let reaches = |pattern: &TopicPattern| match self.effect {
            Effect::Allow => pattern.matches(topic),
            Effect::Deny => pattern.covers(topic),
        };
        self.action.is_none_or(|this| this == action)
            && (action != Action::Subscribe || self.is_about(group))
            && self.topics.iter().any(reaches)
    }

    fn is_about(&self, group: Option<&Group>) -> bool {
        match &self.groups {
            Groups::Any => true,
            Groups::Named(names) => group.is_some_and(|group| names.iter().any(|name| **name == *group.as_str())),
        }
    }
}

/// What a token allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// `None` allows everything, dead letters and snapshots too.
    rules: Option<Box<[Rule]>>,
}

/// The `policy` claim as it is written. Unknown fields of a rule are refused: a misspelt `groups` must not widen it.
#[derive(Deserialize)]
struct PolicyText {
    rules: Vec<RuleText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    effect: String,
    action: String,
    topics: Vec<String>,
    groups: Option<Vec<String>>,
}

impl Policy {
    /// Everything is allowed.
    pub const fn wide_open() -> Self {
        Self { rules: None }
    }

    /// Nothing is allowed.
    pub fn nothing() -> Self {
        Self { rules: Some(Box::default()) }
    }

    /// Reads a `policy` claim, `{"rules": […]}`.
    ///
    /// # Errors
    /// Names the rule and what is wrong with it.
    pub fn parse(json: &str) -> Result<Self, Malformed> {
        let text: PolicyText = serde_json::from_str(json).map_err(|error| Malformed(format!("policy: {error}")))?;
        let rules = text.rules.into_iter().enumerate().map(|(index, rule)| {
            Rule::from_text(rule).map_err(|malformed| Malformed(format!("policy.rules[{index}]: {malformed}")))
        });
        Ok(Self { rules: Some(rules.collect::<Result<_, _>>()?) })
    }

    /// Reads scopes such as `publish:heartbeat.*`; without a pattern a scope is about every ordinary topic.
    ///
    /// # Errors
    /// Names the scope and what is wrong with it.
    pub fn from_scopes<S: AsRef<str>>(scopes: &[S]) -> Result<Self, Malformed> {
        let rules = scopes.iter().map(|scope| Rule::from_scope(scope.as_ref()));
        Ok(Self { rules: Some(rules.collect::<Result<_, _>>()?) })
    }

    /// Reads the scopes of a token, which may be meant for others too: those with another word than an action, such as
    /// `openid`, allow nothing here.
    ///
    /// # Errors
    /// Names the scope and what is wrong with it.
    pub fn from_token_scopes<S: AsRef<str>>(scopes: &[S]) -> Result<Self, Malformed> {
        let ours = scopes.iter().map(AsRef::as_ref).filter(|scope| Action::parse(action_of(scope).0).is_ok());
        Ok(Self { rules: Some(ours.map(Rule::from_scope).collect::<Result<_, _>>()?) })
    }

    /// True if `action` on `topic` is allowed, for `subscribe` by a member of `group` (`None`: without a group).
    pub fn allows(&self, action: Action, topic: &Topic, group: Option<&Group>) -> bool {
        let Some(rules) = &self.rules else { return true };
        let first = rules.iter().find(|rule| rule.matches(action, topic, group));
        first.is_some_and(|rule| rule.effect == Effect::Allow)
    }

    /// True if somebody with this policy could subscribe to `topic` in some group or without one: whether an operator's
    /// view may name it.
    pub fn shows(&self, topic: &Topic) -> bool {
        let Some(rules) = &self.rules else { return true };
        let about = |rule: &&Rule| {
            let reaches = |pattern: &TopicPattern| match rule.effect {
                Effect::Allow => pattern.matches(topic),
                Effect::Deny => pattern.covers(topic),
            };
            // A deny for some groups leaves the others.
            let decides = rule.groups == Groups::Any || rule.effect == Effect::Allow;
            decides && rule.action.is_none_or(|action| action == Action::Subscribe) && rule.topics.iter().any(reaches)
        };
        rules.iter().find(about).is_some_and(|rule| rule.effect == Effect::Allow)
    }

    /// True if `action` is allowed on some topic.
    pub fn allows_somewhere(&self, action: Action) -> bool {
        let Some(rules) = &self.rules else { return true };
        rules.iter().any(|rule| rule.effect == Effect::Allow && rule.action.is_none_or(|this| this == action))
    }

    /// True if `action` is allowed on `**` and nothing is taken away from it.
    pub fn allows_everywhere(&self, action: Action) -> bool {
        let Some(rules) = &self.rules else { return true };
        let mut about = rules.iter().filter(|rule| rule.action.is_none_or(|this| this == action));
        let everywhere = |rule: &Rule| rule.topics.iter().any(|pattern| pattern.as_str() == "**");
        let first = about.find(|rule| rule.effect == Effect::Deny || everywhere(rule));
        first.is_some_and(|rule| rule.effect == Effect::Allow && rule.groups == Groups::Any)
    }

    /// True if a subscription to `selector` may be made. A topic is checked at once; a pattern is accepted however wide
    /// it is, and every topic that it matches has to pass [`allows`](Self::allows) before it is delivered or named.
    pub fn allows_selector(&self, action: Action, selector: &Selector, group: Option<&Group>) -> bool {
        match selector {
            Selector::Topic(topic) => self.allows(action, topic, group),
            Selector::Pattern(_) => true,
        }
    }

    /// True if this policy allows everything, so that nothing has to be checked.
    pub const fn is_wide_open(&self) -> bool {
        self.rules.is_none()
    }
}

/// The action and the pattern of a scope.
fn action_of(scope: &str) -> (&str, &str) {
    scope.split_once(':').unwrap_or((scope, "**"))
}

impl Rule {
    fn from_scope(scope: &str) -> Result<Self, Malformed> {
        let (action, pattern) = action_of(scope);
        let named = |reason: String| Malformed(format!("scope {scope:?}: {reason}"));
        Ok(Self {
            effect: Effect::Allow,
            action: Action::parse(action).map_err(|malformed| named(malformed.to_string()))?,
            topics: Box::new([TopicPattern::parse(pattern).map_err(|invalid| named(invalid.message))?]),
            groups: Groups::Any,
        })
    }

    fn from_text(text: RuleText) -> Result<Self, Malformed> {
        let effect = match text.effect.as_str() {
            "allow" => Effect::Allow,
            "deny" => Effect::Deny,
            other => return Err(Malformed(format!("effect {other:?} is neither allow nor deny"))),
        };
        let pattern = |text: String| {
            TopicPattern::parse(&text).map_err(|invalid| Malformed(format!("topics: {text:?} {}", invalid.message)))
        };
        Ok(Self {
            effect,
            action: Action::parse(&text.action)?,
            topics: text.topics.into_iter().map(pattern).collect::<Result<_, _>>()?,
            groups: text.groups.map_or(Ok(Groups::Any), Groups::from_text)?,
        })
    }
}

impl Groups {
    /// Reads a list of names. An empty one, or one with `*`, is every group.
    fn from_text(names: Vec<String>) -> Result<Self, Malformed> {
        if names.is_empty() || names.iter().any(|name| name == "*") {
            return Ok(Groups::Any);
        }
        let name = |text: String| match Group::parse(&text) {
            Ok(_) => Ok(text.into_boxed_str()),
            Err(invalid) => Err(Malformed(format!("groups: {text:?} {}", invalid.message))),
        };
        names.into_iter().map(name).collect::<Result<_, _>>().map(Groups::Named)
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
