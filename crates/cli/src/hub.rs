//! Models by their names on the hub: in the local cache, offered for download where somebody can answer, or by their
//! headers alone. The only place that asks, and what asks never goes on without a yes.

use std::io::{BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mambo_checkpoint::Checkpoint;
use mambo_engine::human_bytes;
use mambo_hub::{
    Cache, Choice, Hub, HubError, HubOptions, Listing, Plan, PullEvent, Reference, Weights, pick, usual,
};
use mambo_runtime::Model;

use crate::environment;
use crate::progress::ByteBar;
use crate::terminal::put_note;

/// The local cache.
pub fn cache() -> Result<Cache> {
    let folder = environment::hub_cache();
    let folder =
        folder.context("there is no home folder to keep models in; HF_HUB_CACHE names a folder for them")?;
    Ok(Cache::new(folder))
}

/// The hub.
pub fn hub() -> Result<Hub> {
    if environment::is_offline() {
        bail!("HF_HUB_OFFLINE forbids to ask the hub; unset it, or use a model that is on this machine");
    }
    let (endpoint, token) = (environment::hub_endpoint(), environment::hub_token());
    Ok(Hub::new(HubOptions { endpoint, token, cache: cache()?.root().to_owned() })?)
}

/// A name that means a model of the hub: not a path, and not what looks like one.
fn reference(name: &str) -> Option<Reference> {
    let is_file_name = [".gguf", ".safetensors", ".json"].iter().any(|end| name.ends_with(end));
    if Path::new(name).exists() || (is_file_name && !name.contains(':')) {
        return None;
    }
    name.parse().ok()
}

/// Where the files of a model are; a model of the hub that is not here is offered for download.
pub fn located(name: &str) -> Result<PathBuf> {
    let Some(reference) = reference(name) else { return Ok(name.into()) };
    match cache()?.find(&reference) {
        Ok(found) => {
            if reference.choice.is_none() && !found.is_only {
                put_note(format_args!("{name}: using {} of the models on this machine", found.choice.label));
            }
            Ok(found.path)
        }
        Err(error @ (HubError::NotHere { .. } | HubError::PartlyHere { .. })) => offer(&reference, &error),
        Err(error) => Err(error.into()),
    }
}

/// The same for commands that are content with metadata.
pub fn located_metadata(name: &str) -> Result<PathBuf> {
    if let Some(reference) = reference(name)
        && let Err(HubError::PartlyHere { .. }) = cache()?.find(&reference)
        && let Some(folder) = cache()?.folder_of(&reference)
        && folder.join("config.json").exists()
    {
        return Ok(folder);
    }
    located(name)
}

/// A model of the hub that is not on this machine, from its headers: nothing is downloaded.
pub fn remote_headers(name: &str) -> Result<Option<Checkpoint>> {
    let Some(reference) = reference(name) else { return Ok(None) };
    match cache()?.find(&reference) {
        Err(HubError::NotHere { .. } | HubError::PartlyHere { .. }) if !environment::is_offline() => {}
        _ => return Ok(None),
    }
    let hub = hub()?;
    let listing = hub.listing(&reference, &mut say);
    // A configuration that is here describes the model too, though not its types.
    if let Err(error @ HubError::Unreachable { .. }) = &listing
        && cache()?.folder_of(&reference).is_some_and(|folder| folder.join("config.json").exists())
    {
        put_note(format_args!("note: {error}; using what is on this machine"));
        return Ok(None);
    }
    let listing = listing.with_context(|| format!("there is no file or folder `{name}`"))?;
    let choice = choose(&hub, &listing, &reference)?;
    put_note(format_args!("{name} is not on this machine; reading only its headers from the hub"));
    Ok(Some(hub.open_headers(&listing, &choice, &mut say)?))
}

/// Asks a person whether to download a model; everybody else gets the command that does.
fn offer(reference: &Reference, why: &HubError) -> Result<PathBuf> {
    let watched = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if !watched || environment::is_offline() {
        bail!(
            "there is no file or folder `{reference}`, and in the local hub cache {why}; download it first: mambo \
             pull {reference}"
        );
    }
    put_note(format_args!("{why}"));
    let hub = hub()?;
    let plan = planned(&hub, reference, false)?;
    let question = format!("download {} now?", human_bytes(plan.missing_bytes()));
    if !confirmed(&question)? {
        bail!("{reference} was not downloaded; `mambo pull {reference}` does it");
    }
    with_bar(&hub, &plan, || ControlFlow::Continue(())).map_err(Into::into)
}

/// Asks on standard error; only a yes is one.
pub fn confirmed(question: &str) -> Result<bool> {
    let mut error = std::io::stderr();
    write!(error, "{question} [y/N] ")
        .and_then(|()| error.flush())
        .context("cannot ask on standard error")?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("cannot read the answer from standard input")?;
    Ok(matches!(&*answer.trim().to_ascii_lowercase(), "y" | "yes"))
}

/// Which files a download would bring. A model that mambo does not run is refused unless `any` is fine.
pub fn planned(hub: &Hub, reference: &Reference, any: bool) -> Result<Plan> {
    let listing = hub.listing(reference, &mut say)?;
    if listing.ignored > 0 {
        put_note(format_args!("note: {} files are left out, their names lead elsewhere", listing.ignored));
    }
    let choice = choose(hub, &listing, reference)?;
    let plan = hub.plan(&listing, &choice, &mut say)?;
    if !any && plan.missing_bytes() > 0 {
        let runs = will_run(hub, &listing, &choice);
        runs.with_context(|| format!("mambo cannot run {reference}; --force downloads it all the same"))?;
    }
    Ok(plan)
}

/// The files that a reference means; where it does not say, the choice is said aloud.
fn choose(hub: &Hub, listing: &Listing, reference: &Reference) -> Result<Choice> {
    let (choices, repo) = (listing.choices()?, reference.repo.to_string());
    if let Some(asked) = &reference.choice {
        return Ok(pick(&repo, &choices, asked)?.clone());
    }
    let folder = choices.iter().find(|choice| choice.weights == Weights::Safetensors);
    let runs = || folder.is_some_and(|folder| will_run(hub, listing, folder).is_ok());
    let choice = usual(&repo, &choices, runs)?.clone();
    if choices.len() > 1 {
        let others: Vec<&str> =
            choices.iter().map(|other| other.label.as_str()).filter(|label| *label != choice.label).collect();
        put_note(format_args!(
            "{repo}: taking {} ({}); others, as {repo}:NAME, are {}",
            choice.label,
            human_bytes(choice.bytes),
            others.join(", ")
        ));
    }
    Ok(choice)
}

/// Whether the headers describe a model that this program runs.
fn will_run(hub: &Hub, listing: &Listing, choice: &Choice) -> Result<()> {
    let headers = match choice.weights {
        // The configuration says it; the headers of all shards are many requests.
        Weights::Safetensors => {
            let configuration = hub.configuration(listing, &mut say)?;
            Checkpoint::from_sources(&listing.repo.to_string(), configuration, Vec::new())?
        }
        Weights::Gguf => hub.open_headers(listing, choice, &mut say)?,
    };
    Model::of(headers)?;
    Ok(())
}

/// Downloads with a progress bar if a person is watching.
pub fn with_bar(hub: &Hub, plan: &Plan, flow: impl Fn() -> ControlFlow<()>) -> Result<PathBuf, HubError> {
    let bar = ByteBar::new("downloading", plan.bytes());
    bar.starts_at(plan.bytes() - plan.missing_bytes());
    let mut have: Vec<u64> = plan.files.iter().map(|file| file.have).collect();
    let path = hub.pull(plan, &mut |event| {
        match &event {
            PullEvent::Progress { file, done, .. } => {
                if let Some(index) = plan.files.iter().position(|planned| planned.path == *file) {
                    have[index] = *done;
                }
                bar.now(file);
                bar.at(have.iter().sum(), plan.bytes());
            }
            other => _ = say(other.clone()),
        }
        flow()
    });
    bar.done();
    path
}

/// Notes on standard error.
fn say(event: PullEvent<'_>) -> ControlFlow<()> {
    match event {
        PullEvent::Note(note) => put_note(format_args!("note: {note}")),
        PullEvent::Waiting { why, seconds } => {
            put_note(format_args!("note: {why}; trying again in {seconds} s"));
        }
        PullEvent::Idle | PullEvent::Progress { .. } => {}
    }
    ControlFlow::Continue(())
}
