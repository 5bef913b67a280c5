#pragma once

// A store that lives in the process of one rank, its host, and how long the host keeps it: until
// every rank has ended the uses that the host knows of. Groups form in it, so that a rank may leave
// while others still look for each other there.
//
// A use (a group that is being formed) has a unique name and the world ranks that will end it.
//
// Thread safety: all functions may be called from any thread.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "paceline/engine/store/tcp_store.h"
#include "paceline/engine/store/tcp_store_server.h"

namespace paceline {

class HostedStore {
 public:
  // `server` is null everywhere but on the host. `host` and `self` are ranks of the world.
  HostedStore(std::unique_ptr<TcpStoreServer> server, std::shared_ptr<TcpStore> client, int host,
              int self);
  HostedStore(const HostedStore&) = delete;
  HostedStore& operator=(const HostedStore&) = delete;
  // On the host: waits until all uses have ended or the other ranks are gone, at most 10 s, and
  // closes the store.
  ~HostedStore();

  int host() const { return host_; }

  // Each of `ranks` is going to end this use. For the host and for those ranks to call.
  void begin(const std::string& use, const std::vector<int>& ranks);
  // This rank has ended the use. Does nothing when there is no such use, or the store is lost.
  void end(const std::string& use) noexcept;

 private:
  static std::string key_of(const std::string& use, int rank);
  bool forget(const std::string& use);
  bool others_are_gone() const;
  void wait_for_uses();
  void warn_of_uses();

  const std::unique_ptr<TcpStoreServer> server_;
  const std::shared_ptr<TcpStore> client_;  // ends before the server
  const int host_, self_;
  std::mutex mutex_;  // guards uses_
  // The uses and the ranks that have not ended them yet: on the host the other ranks, elsewhere
  // this rank.
  std::map<std::string, std::vector<int>> uses_;
};

// A use from here to the end of the scope. Nothing where `store` is null.
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
