//! Stopping a worker: the first request drains it, the second ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Stops a worker. Clones stop the same one.
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
    /// The first call stops consuming and lets handlers end; the second one waits for none.
    pub fn stop(&self) {
        self.asked.send_modify(|times| *times += 1);
    }

    /// Whether its worker is running.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// Waits until stops have been requested `times` times.
    pub(super) async fn asked(&self, times: u32) {
        // It cannot be closed: this value holds its sender.
        let _ = self.asked.subscribe().wait_for(|asked| *asked >= times).await;
    }

    pub(super) fn is_asked(&self) -> bool {
        *self.asked.borrow() > 0
    }

    /// Begins a run: earlier stop requests count as one.
    pub(super) fn begin(&self) -> Running {
        self.running.store(true, Ordering::Relaxed);
        Running(self.clone())
    }

    /// Handles the signals of the system until dropped.
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

/// A run; when dropped, the worker may be run again.
pub(super) struct Running(Stopper);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Relaxed);
        self.0.asked.send_replace(0);
    }
}
