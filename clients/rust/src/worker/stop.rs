//! How a worker is told to stop: once to drain, twice to end at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Stops a worker. A clone stops the same one.
#[derive(Clone, Debug)]
pub struct Stopper {
    asked: Arc<watch::Sender<u32>>,
    running: Arc<AtomicBool>,
}

impl Default for Stopper {
    fn default() -> Stopper {
        Stopper { asked: Arc::new(watch::Sender::new(0)), running: Arc::default() }
    }
}

impl Stopper {
    /// Told once the worker takes no job any more, and lets its handlers end; told again it waits for none.
    pub fn stop(&self) {
        self.asked.send_modify(|times| *times += 1);
    }

    /// Whether its worker runs.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// Waits until it was told so many times.
    pub(super) async fn asked(&self, times: u32) {
        // It cannot be closed: this value holds its sender.
        let _ = self.asked.subscribe().wait_for(|asked| *asked >= times).await;
    }

    pub(super) fn is_asked(&self) -> bool {
        *self.asked.borrow() > 0
    }

    /// A run begins: what it was told while it did not run counts as told once.
    pub(super) fn begin(&self) -> Running {
        self.running.store(true, Ordering::Relaxed);
        Running(self.clone())
    }

    /// Heeds the signals of the system until it is dropped.
    pub(super) async fn heed_signals(self) {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut term), Ok(mut int)) =
                (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
            else {
                tracing::warn!("signals cannot be heeded");
                return;
            };
            loop {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
                self.stop();
            }
        }
        #[cfg(not(unix))]
        while tokio::signal::ctrl_c().await.is_ok() {
            self.stop();
        }
    }
}

/// A run; when it ends the worker may be run again.
pub(super) struct Running(Stopper);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Relaxed);
        self.0.asked.send_replace(0);
    }
}
