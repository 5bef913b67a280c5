#include "paceline/engine/store/tcp_store_server.h"

#include <utility>

#include "paceline/engine/core/thread.h"
#include "paceline/engine/store/store_server_loop.h"

namespace paceline {

TcpStoreServer::TcpStoreServer(const Endpoint& endpoint, const Secret& secret,
                               TcpStoreServerOptions options)
    : TcpStoreServer(listen_tcp(endpoint), secret, options) {}

TcpStoreServer::TcpStoreServer(Fd listener, const Secret& secret, TcpStoreServerOptions options)
    : port_(local_port(listener)),
      loop_(std::make_unique<StoreServerLoop>(std::move(listener), secret, options)),
      thread_(start_thread("store-server", [loop = loop_.get()] { loop->run(); })) {}

TcpStoreServer::~TcpStoreServer() {
  loop_->stop();
  thread_.join();
}

bool TcpStoreServer::wait_until_clients_left(std::chrono::milliseconds timeout) {
  return loop_->wait_until_clients_left(Deadline::after(timeout));
}

std::size_t TcpStoreServer::num_clients() const { return loop_->num_clients(); }

}  // namespace paceline
