//! A way between two processes that can be cut as a network is: what is under way stays there, nobody is told.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) struct Way {
    /// Where it begins.
    pub(crate) from: SocketAddr,
    to: Arc<OnceLock<SocketAddr>>,
    cut: watch::Sender<bool>,
}

impl Way {
    /// One that leads nowhere yet.
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let from = listener.local_addr().expect("bound");
        let (to, cut) = (Arc::<OnceLock<SocketAddr>>::default(), watch::Sender::new(false));
        let (leads, state) = (Arc::clone(&to), cut.subscribe());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, Arc::clone(&leads), state.clone()));
            }
        });
        Self { from, to, cut }
    }

    pub(crate) fn leads_to(&self, to: SocketAddr) {
        self.to.set(to).expect("once");
    }

    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub(crate) fn mend(&self) {
        self.cut.send_replace(false);
    }
}

/// Carries bytes until the way is cut; from then on both ends hear nothing more, until it is mended: then this
/// connection is over.
async fn carry(mut near: TcpStream, to: Arc<OnceLock<SocketAddr>>, mut cut: watch::Receiver<bool>) {
    let carried = async {
        let Ok(mut far) = TcpStream::connect(to.get().expect("it leads somewhere")).await else { return };
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    };
    tokio::pin!(carried);
    tokio::select! {
        biased;
        _ = cut.wait_for(|cut| *cut) => {}
        () = &mut carried => return,
    }
    let _ = cut.wait_for(|cut| !*cut).await;
}
