#pragma once

// A store that lives in the process of one rank, the *hosting rank*. Groups form through the store,
// so other ranks may still need the store when the hosting rank has finished. That rank then keeps
// the store open until every registered use has ended, but at most 10 s longer.
//
// A use is a group that is being formed: a unique name and the world ranks that will end the use.
//
// Thread safety: all functions may be called from any thread.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "paceline/engine/core/system/host.h"
#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"

namespace paceline {

class HostedStore {
 public:
  // `server` is null on every rank except `host`, the hosting rank. `host` and `self` are ranks of
  // the world.
  HostedStore(std::unique_ptr<TcpStoreServer> server, std::shared_ptr<TcpStore> client, int host,
              int self);
  HostedStore(const HostedStore&) = delete;
  HostedStore& operator=(const HostedStore&) = delete;
  // On the hosting rank, waits at most 10 s until all uses have ended or all other ranks have
  // disconnected, and closes the store. Does nothing in a child of fork().
  ~HostedStore();

  int host() const { return host_; }

  // Begins a use that each of `ranks` will end. The hosting rank and these ranks call begin().
  void begin(const std::string& use, const std::vector<int>& ranks);
  // Ends the use for this rank. No effect on the hosting rank, for an unknown use or a lost store,
  // and in a child of fork().
  void end(const std::string& use) noexcept;

 private:
  static std::string key_of(const std::string& use, int rank);
  bool forget(const std::string& use);
  bool others_disconnected() const;
  void wait_for_uses();
  void warn_of_uses();

  const OwnerProcess owner_;
  const std::unique_ptr<TcpStoreServer> server_;
  const std::shared_ptr<TcpStore> client_;  // destroyed before the server
  const int host_, self_;
  std::mutex mutex_;  // guards uses_
  // The ranks that must end each use. The hosting rank lists the other ranks; any other rank lists
  // only itself, until it has ended the use.
  std::map<std::string, std::vector<int>> uses_;
};

// A use that lasts as long as this object. Does nothing when `store` is null.
class StoreUse {
 public:
  StoreUse(std::shared_ptr<HostedStore> store, std::string use, const std::vector<int>& ranks);
  StoreUse(const StoreUse&) = delete;
  StoreUse& operator=(const StoreUse&) = delete;
  ~StoreUse();

 private:
  const std::shared_ptr<HostedStore> store_;
  const std::string use_;
};

}  // namespace paceline
