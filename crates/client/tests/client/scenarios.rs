//! The scripts of sdk/scenarios, which every client runs. Their README has the format.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Mutex;

use futures_util::future::join_all;
use promethean_client::{Error, Handling, Report};
use serde_json::Value;
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::stage::{Answer, Stage};
use super::*;

type Outcome = Result<Value, Error>;

/// A handler that runs: its event, the attempt, and the way to end it.
type Started = (String, u64, oneshot::Sender<Result<(), String>>);

/// The client of a script, connected by its first call.
struct Caller {
    url: String,
    client: OnceCell<Client>,
    reports: mpsc::UnboundedSender<String>,
    started: mpsc::UnboundedSender<Started>,
    handlings: Mutex<Vec<Handling>>,
}

struct Run {
    caller: Arc<Caller>,
    connections: mpsc::UnboundedReceiver<(Value, Answer)>,
    frames: mpsc::UnboundedReceiver<Value>,
    hub: Option<Answer>,
    ops: Arc<Mutex<Vec<String>>>,
    bound: HashMap<String, Value>,
    results: HashMap<String, JoinHandle<Outcome>>,
    reports: mpsc::UnboundedReceiver<String>,
    started: mpsc::UnboundedReceiver<Started>,
    running: HashMap<String, (u64, oneshot::Sender<Result<(), String>>)>,
    leases: u64,
    close_ms: u64,
}

/// The code of an error, as the scripts have it.
fn code(error: &Error) -> String {
    match error.cause() {
        Error::Refused { code, .. } => code.clone(),
        Error::Lost => "disconnected".to_owned(),
        Error::Closed => "closed".to_owned(),
        Error::Connect { .. } => "connect_failed".to_owned(),
        other => other.code().map_or_else(|| other.to_string(), |code| code.as_str().to_owned()),
    }
}

async fn within<T>(what: &str, future: impl Future<Output = Option<T>>) -> Result<T, String> {
    let waited = tokio::time::timeout(PATIENCE, future).await.map_err(|_| format!("{what}: nothing in time"))?;
    waited.ok_or_else(|| format!("{what}: never"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

impl Caller {
    async fn call(self: Arc<Self>, step: Value, close_ms: u64) -> Outcome {
        let client = self.client.get_or_try_init(|| self.connect()).await?;
        let topic = text(&step["topic"]);
        match step["call"].as_str().expect("a call") {
            "connect" => {}
            "publish" => {
                let sent = client.publish(&topic, &step["payload"]).await?;
                return Ok(json!({"id": sent.id, "seq": sent.seq, "duplicate": sent.duplicate}));
            }
            "publishBatch" => {
                let event = |event: &Value| {
                    let publish = Publish::new(&event["payload"]).expect("JSON");
                    match event["id"].as_str() {
                        Some(id) => publish.id(EventId::parse(id).expect("an id")),
                        None => publish,
                    }
                };
                let events = step["events"].as_array().expect("events").iter().map(event).collect();
                client.publish_batch(&topic, events).await?;
            }
            "subscribe" => self.subscribe(client, &topic, step["group"].as_str(), &step["options"]).await?,
            "close" => client.clone().close_within(Duration::from_millis(close_ms)).await?,
            other => panic!("unknown call {other}"),
        }
        Ok(Value::Null)
    }

    async fn connect(&self) -> Result<Client, Error> {
        let reports = self.reports.clone();
        let report = move |report: Report<'_>| {
            let _ = reports.send(match report {
                Report::Handler { reason, .. } => reason.to_owned(),
                Report::Ended { error, .. } | Report::Connection { error, .. } => code(error),
                _ => String::new(),
            });
        };
        let quick = Duration::from_millis(10);
        Client::builder(&self.url).token("t").backoff(quick, quick).on_error(report).connect().await
    }

    async fn subscribe(&self, client: &Client, topic: &str, group: Option<&str>, options: &Value) -> Result<(), Error> {
        let number = |name: &str| options[name].as_u64();
        let default = SubscribeOptions::default();
        let wanted = SubscribeOptions {
            concurrency: number("concurrency").map(|n| n as usize),
            max_in_flight: number("maxInFlight").map_or(default.max_in_flight, |n| n as usize),
            ack_timeout: number("ackTimeoutMs").map_or(default.ack_timeout, Duration::from_millis),
            ..default
        };
        let started = self.started.clone();
        let handler = move |event: String, attempt: u32| {
            let (end, ended) = oneshot::channel();
            let _ = started.send((event, attempt.into(), end));
            async move { ended.await.unwrap_or(Ok(())) }
        };
        let Some(group) = group else {
            let mut events = client.subscribe(topic, None, wanted).await?;
            tokio::spawn(async move {
                while let Ok(Some(delivery)) = events.next().await {
                    let _ = handler(delivery.event().id.to_string(), delivery.context().attempt).await;
                }
            });
            return Ok(());
        };
        let handle =
            move |one: Arc<promethean_client::Delivery>| handler(one.event().id.to_string(), one.context().attempt);
        let handling = client.handle(topic, group, wanted, handle).await?;
        self.handlings.lock().expect("a list").push(handling);
        Ok(())
    }
}

impl Run {
    async fn new(script: &Value) -> Self {
        let mut stage = Stage::new().await;
        let (reports, reported) = mpsc::unbounded_channel();
        let (starts, started) = mpsc::unbounded_channel();
        let url = stage.url.clone();
        let handlings = Mutex::default();
        let caller = Caller { url, client: OnceCell::new(), reports, started: starts, handlings };
        let (connect, connections) = mpsc::unbounded_channel();
        let (forward, frames) = mpsc::unbounded_channel();
        let ops = Arc::new(Mutex::new(Vec::new()));
        let (seen, mut answered) = (Arc::clone(&ops), strings(&script["ignore"]));
        answered.extend(["PING", "PAUSE", "RESUME"].map(str::to_owned));
        tokio::spawn(async move {
            while let Some((frame, hub)) = stage.any().await {
                let op = text(&frame["op"]);
                seen.lock().expect("a list").push(op.clone());
                if op == "AUTH" {
                    let _ = connect.send((frame, hub));
                } else if answered.contains(&op) {
                    hub.try_say(json!({"op": "OK", "corr": frame["corr"]}));
                } else {
                    let _ = forward.send(frame);
                }
            }
        });
        Self {
            caller: Arc::new(caller),
            connections,
            frames,
            hub: None,
            ops,
            bound: HashMap::new(),
            results: HashMap::new(),
            reports: reported,
            started,
            running: HashMap::new(),
            leases: 0,
            close_ms: script["client"]["closeMs"].as_u64().unwrap_or(10_000),
        }
    }

    async fn run(mut self, script: &Value) -> Result<(), String> {
        for (number, step) in script["steps"].as_array().expect("steps").iter().enumerate() {
            self.step(step).await.map_err(|reason| format!("step {}, {step}: {reason}", number + 1))?;
        }
        let never = strings(&script["never"]);
        let seen = self.ops.lock().expect("a list");
        match seen.iter().find(|op| never.contains(op)) {
            Some(op) => Err(format!("the client sent {op}")),
            None => Ok(()),
        }
    }

    /// True if `frame` has the fields of `wanted`; a `$name` is bound by the first value that it meets.
    fn has(&mut self, frame: &Value, wanted: &Value) -> bool {
        match wanted {
            Value::String(name) if name.starts_with('$') => {
                self.bound.entry(name.clone()).or_insert_with(|| frame.clone()) == frame
            }
            Value::Object(fields) => fields.iter().all(|(name, value)| self.has(&frame[name], value)),
            other => frame == other,
        }
    }

    fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(name) if name.starts_with('$') => self.bound[name].clone(),
            Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), self.fill(value))).collect(),
            other => other.clone(),
        }
    }

    fn say(&self, frame: Value) {
        self.hub.as_ref().expect("a connection").try_say(frame);
    }

    /// Answers the frame `corr` with these fields.
    fn answer(&self, op: &str, corr: &Value, fields: &Value) {
        let mut frame = json!({"op": op, "corr": corr});
        for (name, value) in self.fill(fields).as_object().expect("fields") {
            frame[name] = value.clone();
        }
        self.say(frame);
    }

    async fn step(&mut self, step: &Value) -> Result<(), String> {
        let kind = |name: &str| step.get(name).is_some();
        if kind("accept") {
            let (auth, hub) = within("a connection", self.connections.recv()).await?;
            assert_eq!(auth["token"], "t");
            while self.frames.try_recv().is_ok() {}
            self.hub = Some(hub);
            let op = if step["accept"].get("code").is_some() { "ERR" } else { "OK" };
            self.answer(op, &auth["corr"], &step["accept"]);
        } else if kind("expect") {
            return self.expect(step).await;
        } else if kind("deliver") {
            self.deliver(step);
        } else if kind("send") {
            self.say(self.fill(&step["send"]));
        } else if kind("text") {
            self.hub.as_ref().expect("a connection").say_text(text(&step["text"]));
        } else if kind("cut") {
            self.hub.take().expect("a connection").hang_up();
        } else if kind("call") {
            let call = Arc::clone(&self.caller).call(step.clone(), self.close_ms);
            self.results.insert(text(&step["as"]), tokio::spawn(call));
        } else if kind("result") {
            return self.result(step).await;
        } else if kind("started") {
            let id = text(&step["started"]);
            while !self.running.contains_key(&id) {
                let (id, attempt, end) = within("a handler", self.started.recv()).await?;
                self.running.insert(id, (attempt, end));
            }
            let attempt = self.running[&id].0;
            if step["attempt"].as_u64().is_some_and(|wanted| wanted != attempt) {
                return Err(format!("it is attempt {attempt}"));
            }
        } else if kind("return") {
            self.end(&step["return"], Ok(()));
        } else if kind("throw") {
            self.end(&step["throw"], Err(text(&step["message"])));
        } else if kind("reported") {
            while within("a report", self.reports.recv()).await? != step["reported"] {}
        } else {
            return Err("unknown step".to_owned());
        }
        Ok(())
    }

    fn end(&mut self, id: &Value, result: Result<(), String>) {
        let (_, end) = self.running.remove(&text(id)).expect("a handler");
        end.send(result).expect("it runs");
    }

    fn deliver(&mut self, step: &Value) {
        let (attempt, deadline) = (step["attempt"].as_u64(), step["ack_deadline_ms"].as_u64());
        for (index, id) in strings(&step["deliver"]).into_iter().enumerate() {
            self.leases += 1;
            self.say(json!({
                "op": "EVENT", "topic": step["topic"], "group": step["group"],
                "event": {"id": id, "seq": index + 1, "ts": 1, "topic": step["topic"], "payload": null},
                "ctx": {
                    "attempt": attempt.unwrap_or(1), "maxAttempts": 5,
                    "ack_deadline_ms": deadline.unwrap_or(30_000), "lease": self.leases,
                },
            }));
        }
    }

    async fn expect(&mut self, step: &Value) -> Result<(), String> {
        let mut fields = step["expect"].clone();
        let ids = fields.as_object_mut().and_then(|fields| fields.remove("ids"));
        let mut left: BTreeSet<String> = ids.iter().flat_map(strings).collect();
        let mut count = 0;
        loop {
            let frame = within("a frame", self.frames.recv()).await?;
            count += 1;
            if !self.has(&frame, &fields) {
                return Err(format!("the frame is {frame}"));
            }
            let one = strings(&json!([frame["id"]]));
            for id in if frame["ids"].is_array() { strings(&frame["ids"]) } else { one } {
                if ids.is_some() && !left.remove(&id) {
                    return Err(format!("not expected: {id} in {frame}"));
                }
            }
            if let Some(reply) = step.get("reply") {
                self.answer("OK", &frame["corr"], reply);
            }
            if left.is_empty() {
                break;
            }
        }
        match step["frames"].as_u64() {
            Some(most) if count > most => Err(format!("{count} frames")),
            _ => Ok(()),
        }
    }

    async fn result(&mut self, step: &Value) -> Result<(), String> {
        let call = self.results.remove(&text(&step["result"])).expect("a call");
        let outcome = within("the result", async { call.await.ok() }).await?;
        let is = match &outcome {
            Ok(_) => Value::Null,
            Err(error) => code(error).into(),
        };
        if is != step["error"] {
            return Err(format!("the outcome is {outcome:?}"));
        }
        if step["ids"].is_array() {
            let ids = outcome.as_ref().err().map(|error| json!(error.ids()));
            if ids.as_ref() != Some(&step["ids"]) {
                return Err(format!("the error names {ids:?}"));
            }
        }
        match &outcome {
            Ok(value) if !self.has(value, &step["is"]) && step["is"].is_object() => Err(format!("it is {value}")),
            _ => Ok(()),
        }
    }
}

/// A script, with the ids that `"@7"` stands for.
fn script(path: &Path) -> Value {
    fn ids(value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(number) = text.strip_prefix('@').and_then(|number| number.parse::<u64>().ok()) {
                    *text = format!("00000000-0000-7000-8000-{number:012}");
                }
            }
            Value::Array(list) => list.iter_mut().for_each(ids),
            Value::Object(fields) => fields.values_mut().for_each(ids),
            _ => {}
        }
    }
    let mut script = serde_json::from_slice(&std::fs::read(path).expect("readable")).expect("JSON");
    ids(&mut script);
    script
}

#[tokio::test]
async fn the_client_passes_the_scenarios_of_all_clients() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/scenarios");
    let files = std::fs::read_dir(folder).expect("readable").map(|entry| entry.expect("an entry").path());
    let scripts = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let runs = scripts.map(|path| async move {
        let script = script(&path);
        let outcome = Run::new(&script).await.run(&script).await;
        outcome.err().map(|reason| format!("{}: {reason}", path.file_name().unwrap_or_default().display()))
    });
    let failed: Vec<String> = join_all(runs).await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
