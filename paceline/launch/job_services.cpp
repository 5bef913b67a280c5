#include "paceline/launch/job_services.h"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/core/check.h"
#include "paceline/core/secret.h"
#include "paceline/core/socket.h"

namespace paceline::launch {
namespace {

constexpr std::size_t kMaxSecretFile = 4096;

std::string secret_of_all_nodes(int num_nodes) {
  const char* path = std::getenv("PACELINE_SECRET_FILE");
  check(path != nullptr && *path != '\0',
        "--nnodes {}: a job on several nodes needs PACELINE_SECRET_FILE, the same file (mode 0600) "
        "on every node; make one with: (umask 077; openssl rand -hex 32 > job.secret); or let one "
        "launcher start all nodes: --hosts",
        num_nodes);
  return read_secret_file(path);
}

}  // namespace

std::string read_secret_file(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int error = errno;
  check(static_cast<bool>(file), "PACELINE_SECRET_FILE={}: {}", path, std::strerror(error));
  struct stat status {};
  fstat(file.get(), &status);
  check((status.st_mode & 077) == 0,
        "PACELINE_SECRET_FILE={0}: others may read it (mode {1:03o}); run: chmod 600 {0}", path,
        status.st_mode & 0777);
  std::string text(kMaxSecretFile, '\0');
  const ssize_t length = read(file.get(), text.data(), text.size());
  check(length > 0, "PACELINE_SECRET_FILE={}: it is empty; make one with: openssl rand -hex 32",
        path);
  text.resize(static_cast<std::size_t>(length));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

JobServices::JobServices(const LaunchOptions& options) {
  if (options.num_nodes == 1) {
    claim_one_node(options);
  } else {
    claim_several_nodes(options);
  }
}

void JobServices::claim_one_node(const LaunchOptions& options) {
  secret_text_ = random_hex(Secret::kSize);
  store_listener_ = listen_tcp({"127.0.0.1", 0});
  reserved_ = reserve_port(options.master_port);
  addresses_.store = to_string(Endpoint{"127.0.0.1", local_port(store_listener_)});
  addresses_.master_addr = options.master_addr;
  addresses_.master_port = reserved_.port;
}

void JobServices::claim_several_nodes(const LaunchOptions& options) {
  if (options.part) {
    secret_text_ = options.part->secret;
  } else {
    secret_text_ = secret_of_all_nodes(options.num_nodes);
  }
  const Endpoint endpoint{options.master_addr, options.master_port};
  if (options.node_rank == 0) store_listener_ = listen_tcp(endpoint);
  addresses_.store = to_string(endpoint);
  addresses_.master_addr = options.master_addr;
  addresses_.master_port =
      options.part ? options.part->rank_port : static_cast<std::uint16_t>(options.master_port + 1);
}

Fd JobServices::make_secret_fd() const {
  Fd fd(memfd_create("paceline-secret", MFD_CLOEXEC));
  const auto size = static_cast<ssize_t>(secret_text_.size());
  if (!fd || write(fd.get(), secret_text_.data(), secret_text_.size()) != size) {
    throw system_error("memfd_create, for the job's secret");
  }
  lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

void JobServices::start_store() {
  if (!store_listener_) return;
  store_ =
      std::make_unique<TcpStoreServer>(std::move(store_listener_), Secret::from_text(secret_text_));
}

}  // namespace paceline::launch
