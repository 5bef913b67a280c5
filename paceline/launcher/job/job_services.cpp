#include "paceline/launcher/job/job_services.h"

#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/socket.h"
#include "paceline/engine/rendezvous/job_secret.h"

namespace paceline::launcher {
namespace {

constexpr std::chrono::seconds kAnswer{1};

// The user's file, which ranks can read as well, or else a new one. What an outer job handed to
// this process is not this job's.
Secret choose_secret() {
  const auto of_file = find_job_secret([](const std::string& name) {
    return name == "PACELINE_SECRET_FD" ? std::nullopt : process_environment()(name);
  });
  return of_file ? *of_file : Secret::generate();
}

}  // namespace

JobServices::JobServices(const LaunchOptions& options) : secret_(choose_secret()) {
  claim("127.0.0.1", options.master_addr, options.master_port);
}

JobServices::JobServices(const std::string& host, const Secret& secret) : secret_(secret) {
  claim(host, host, 0);
}

void JobServices::claim(const std::string& host, const std::string& master_addr,
                        std::uint16_t master_port) {
  store_listener_ = listen_tcp_for_others({host, 0});
  reserved_ = reserve_port(master_port);
  offer_ = {{host, local_port(store_listener_)}, {master_addr, reserved_.port}};
  set_addresses();
}

void JobServices::set_addresses() {
  addresses_.store = to_string(offer_.store);
  addresses_.master_addr = offer_.master.host;
  addresses_.master_port = offer_.master.port;
}

void JobServices::use(const Offer& others) {
  store_listener_.reset();
  reserved_ = {};
  offer_ = others;
  set_addresses();
}

Fd JobServices::make_secret_fd() const {
  const std::string text = secret_.to_hex();
  Fd fd(memfd_create("paceline-secret", MFD_CLOEXEC));
  if (!fd || !write_whole(fd.get(), as_bytes(text))) {
    throw system_error("memfd_create, for the job's secret");
  }
  lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

void JobServices::start_store() {
  if (store_listener_) {
    store_ = std::make_unique<TcpStoreServer>(std::move(store_listener_), secret_);
  }
}

Absence JobServices::meeting(int generation, int world_size) {
  if (!store_) return {};
  try {
    if (!onlooker_) onlooker_ = std::make_unique<TcpStore>(offer_.store, secret_, kAnswer);
    return absence_from_meeting(*onlooker_, generation, world_size);
  } catch (const Error&) {
    onlooker_.reset();
    return {};
  }
}

}  // namespace paceline::launcher
