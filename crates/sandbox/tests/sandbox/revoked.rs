//! A token that is revoked while its worker works.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use quintet_sandbox::hub::{
    ExecEvent, ExecHandle, HubEvent, HubSettings, RequestError, UploadRequest, WorkerStatus,
};
use quintet_sandbox::proto::{Protocol, Token};
use quintet_sandbox::tls;
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};

use crate::bed::{Bed, Running, TestAuth, soon};
use crate::commands::{command, run, text};
use crate::shells::start;

/// A hub that would wait for an hour for a worker that is gone.
async fn patient_bed(strict: bool) -> Bed {
    let hour = Duration::from_secs(60 * 60);
    let settings = HubSettings {
        reattach: hour,
        patience: hour,
        ..HubSettings::default()
    };
    let auth = TestAuth {
        strict,
        ..TestAuth::default()
    };
    Bed::custom(settings, auth, None).await
}

async fn worker_with_token(bed: &Bed, protocol: Protocol) -> Running {
    let token = Token::mint(tls::random_secret().unwrap(), None);
    let entry = ("w".to_owned(), token.hash("w"));
    bed.auth.tokens.lock().unwrap().extend([entry]);
    let mut config = bed.config("w");
    config.spool_dir = bed.dir.path().join(format!("spool-{}", protocol.name()));
    config.token = Some(token);
    config.protocols = vec![protocol];
    bed.worker_with(config).await
}

async fn revoke(bed: &Bed) -> bool {
    bed.auth.tokens.lock().unwrap().clear();
    soon("a look", bed.hub.recheck("w", "its token was revoked")).await
}

fn sent_away() -> RequestError {
    RequestError::Dismissed {
        worker: "w".to_owned(),
        reason: "its token was revoked".to_owned(),
    }
}

async fn failure(handle: &mut ExecHandle) -> RequestError {
    loop {
        if let Err(error) = soon("the command ends", handle.next()).await {
            return error;
        }
    }
}

/// A file that can't be read on.
struct Stuck;

impl AsyncRead for Stuck {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncSeek for Stuck {
    fn start_seek(self: Pin<&mut Self>, _: io::SeekFrom) -> io::Result<()> {
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(Ok(0))
    }
}

#[tokio::test]
async fn everything_that_waits_for_its_worker_ends_at_once_and_says_why() {
    let bed = patient_bed(true).await;
    let worker = worker_with_token(&bed, Protocol::V2).await;
    let mut exec = bed
        .hub
        .exec("w", command("echo $$; exec sleep 1000"))
        .await
        .unwrap();
    let Ok(ExecEvent::Stdout(printed)) = soon("a process id", exec.next()).await else {
        panic!("it prints first");
    };
    let process = format!("/proc/{}", text(&printed).trim());
    let mut shell = start(&bed, "w").await;
    std::fs::write(bed.root("w").join("big"), vec![7; 64 << 20]).unwrap();
    let download = bed.hub.download("w", "big", None);
    let mut download = soon("a file", download).await.unwrap();
    let request = UploadRequest {
        path: "copy".to_owned(),
        size: 1000,
        mode: None,
        modified: None,
    };
    let (begun_tx, begun) = tokio::sync::oneshot::channel();
    let mut begun_tx = Some(begun_tx);
    let mut source = Stuck;
    let upload = bed.hub.upload("w", &request, &mut source, |_| {
        begun_tx
            .take()
            .into_iter()
            .for_each(|it| it.send(()).unwrap());
    });
    let (uploaded, stays) = soon("the upload ends", async {
        tokio::join!(upload, async {
            begun.await.unwrap();
            revoke(&bed).await
        })
    })
    .await;
    assert!(!stays);
    assert_eq!(uploaded, Err(sent_away()));
    assert_eq!(failure(&mut exec).await, sent_away());
    let ended = loop {
        match soon("the shell ends", shell.handle.next()).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(ended, sent_away());
    let ended = loop {
        match soon("the download ends", download.next()).await {
            Ok(bytes) => assert!(bytes.is_some(), "not all of it can have come"),
            Err(error) => break error,
        }
    };
    assert_eq!(ended, sent_away());
    // Nobody could stop it any more.
    soon("the command is gone", async {
        while std::fs::exists(&process).unwrap() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let later = bed.hub.exec("w", command("true")).await;
    assert_eq!(later.err(), Some(sent_away()));
    worker.stop().await;
    let _worker = worker_with_token(&bed, Protocol::V1).await;
    assert_eq!(run(&bed, "w", command("echo back")).await.stdout, b"back\n");
}

#[tokio::test]
async fn a_command_of_the_first_version_says_why_it_ended() {
    let bed = patient_bed(true).await;
    let _worker = worker_with_token(&bed, Protocol::V1).await;
    let mut exec = bed.hub.exec("w", command("sleep 1000")).await.unwrap();
    assert!(!revoke(&bed).await);
    assert_eq!(failure(&mut exec).await, sent_away());
}

#[tokio::test]
async fn a_command_whose_worker_was_lost_before_does_not_wait_for_it() {
    let bed = patient_bed(true).await;
    let worker = worker_with_token(&bed, Protocol::V2).await;
    let mut exec = bed.hub.exec("w", command("sleep 1000")).await.unwrap();
    worker.stop().await;
    bed.status("w", WorkerStatus::Offline).await;
    let (stays, error) = tokio::join!(revoke(&bed), failure(&mut exec));
    assert!(!stays);
    assert_eq!(error, sent_away());
}

#[tokio::test]
async fn a_worker_that_may_stay_is_not_disturbed() {
    let bed = patient_bed(false).await;
    let _worker = worker_with_token(&bed, Protocol::V2).await;
    let mut request = command("read line; echo $line");
    request.stdin = true;
    let exec = bed.hub.exec("w", request).await.unwrap();
    let input = exec.stdin();
    assert!(revoke(&bed).await, "it is of this user");
    input.write(b"still here\n").await.unwrap();
    let output = soon("the end", exec.output(100)).await.unwrap();
    assert_eq!(output.stdout, b"still here\n");
    let gone = |event: &_| matches!(event, HubEvent::WorkerOffline { .. });
    assert!(!bed.events().iter().any(gone));
}
