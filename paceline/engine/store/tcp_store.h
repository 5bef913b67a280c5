#pragma once

// The client of TcpStoreServer. Each call has a connection of its own: an idle one, of which up to
// four are kept, or a new one. So a get that waits does not delay other calls, and every waiting
// call notices at once when the server dies.
//
// A lost server stays lost, because its contents are lost: every later call throws the same
// Error(kPeerLost).
//
// Thread safety: as Store.

#include <mutex>
#include <string>
#include <vector>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/socket.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

class TcpStore final : public Store {
 public:
  // Connects, waiting up to `timeout` for the server to come up; `timeout` also becomes the timeout
  // of the store. Throws Error(kTimeout), which names the endpoint and the last cause, and
  // Error(kInvalid) when the server has another secret or is not a Paceline store.
  TcpStore(Endpoint endpoint, const Secret& secret,
           std::chrono::milliseconds timeout = kDefaultTimeout);

  StoreReply run(const StoreRequest& request) override;

  const Endpoint& endpoint() const { return endpoint_; }
  // The address of this host's end of the connection to the server, at which the server's other
  // clients can reach this process.
  const std::string& local_address() const { return local_address_; }
  // The number of connections that no call is using.
  std::size_t num_idle_connections();

 private:
  StoreReply exchange(const StoreRequest& request, Deadline deadline);
  Fd take_connection(Deadline deadline);
  void keep_connection(Fd connection);
  Fd connect_until(Deadline deadline, bool reached_before);
  Fd reconnect(Deadline deadline);
  [[noreturn]] void lose(const std::string& cause);

  const Endpoint endpoint_;
  const Secret secret_;
  std::string local_address_;
  std::mutex mutex_;      // guards idle_ and lost_
  std::vector<Fd> idle_;  // connections that no call is using
  std::string lost_;      // why the server was lost; empty while it lives
};

}  // namespace paceline
