#pragma once

// Training over slow links: DiLoCo (Douillard et al., 2023) and its streaming form (Douillard et
// al., 2025). The ranks are divided into learners. Each learner trains on its own for `period`
// steps, with any data parallelism inside; then an outer optimizer (SGD with Nesterov momentum)
// takes a step on the mean difference between the learners' parameters and those from which they
// began, and all learners continue from the result.
//
//   DeviceMesh mesh(group, {{"learner", 2}, {"dp", 4}});
//   DistributedDataParallel model(net, mesh.group("dp"));
//   LowCommunication outer(mesh.group("learner"), mesh.group("dp"), model->parameters(),
//                          {.period = 50, .fragments = 4, .delay = 5});
//   ... optimizer.step(); outer.step();
//   outer.finish();
//
// With outer_lr 1, outer_momentum 0 and warm-up this is post-local SGD (Lin et al., 2018),
// PyTorch's PeriodicModelAverager: the learners take the mean of their parameters.
//
// Fragments. The parameters are divided into fragments of equal size, which are sent one after
// another, each every `period` steps, so the link carries one fragment at a time. With a delay the
// training continues while a fragment is in flight: the fragment's outer step is taken `delay`
// steps later, and the progress that a learner has made meanwhile is added to the result.
//
// On the wire. A learner's ranks divide the fragment: each averages its part with the ranks at the
// same position in the other learners, and then they gather the parts over the learner's own
// network. Bytes that a rank sends per round, for n elements of a fragment, R ranks of a learner
// and L learners: 4 n / R * 2 (L - 1) / L as float32, half of that as bfloat16, and (1 + 4 / 256) n
// / R * (L - 1) as int8 with a scale for each 256 elements. The rounding error is added to the next
// difference (error feedback).
//
// Without a delay, all learners have the same bits in a fragment when its round has ended.
//
// Asynchronous. Instead of a group, a server (outer_server.h) can take the outer steps. Then
// learners may join, leave or be slow: a round needs only a quorum of them. The first rank of a
// learner sends whole fragments to the server, in one of the types above, and receives float32.
//
//   LowCommunication outer(*workers, "server0", learner, model->parameters(), {.period = 50});
//
// Thread safety: none; one thread trains. A round of a fragment with a delay continues on the
// threads of the learners' group, or of the worker.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/metadata.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline {

namespace rpc {
class Workers;
}

struct LowCommunicationOptions {
  std::int64_t period = 50;    // H: steps between two rounds of a fragment
  std::int64_t fragments = 1;  // at most `period`
  // The number of steps for which a fragment may be in flight; below period / fragments. If the
  // link needs more time for a fragment, learners wait for it (seconds_waited()).
  std::int64_t delay = 0;
  // Steps at the beginning, after each of which the learners take the mean of their parameters.
  std::int64_t warmup_steps = 0;
  double outer_lr = 0.7;             // a server uses OuterServerOptions::lr instead
  double outer_momentum = 0.9;       // a server uses OuterServerOptions::momentum instead
  at::ScalarType wire = at::kFloat;  // type of the values sent: kFloat, kBFloat16 or kChar (int8)
  // The optimizer, if the learner's ranks divide it (fully_shard()): it makes the parameters whole
  // and writable for the rounds. Null: every rank has its own parameters.
  optim::Optimizer* optimizer = nullptr;
  // How long a learner waits for the end of a round at the server.
  std::chrono::milliseconds server_timeout = std::chrono::minutes(10);
};

class LowCommunication {
 public:
  // Collective over all ranks. `peers`: the ranks at the same position in all learners; `learner`:
  // the ranks of this learner, which have the same parameters. All learners get the parameters of
  // the first learner. Error(kInvalid) for options that do not fit together, or parameters that are
  // not dense floating-point tensors on the CPU.
  LowCommunication(std::shared_ptr<ProcessGroup> peers, std::shared_ptr<ProcessGroup> learner,
                   std::vector<at::Tensor> parameters, const LowCommunicationOptions& options);
  // Asynchronous: exchanges updates with the OuterServer of worker `server`, which knows the
  // learner by the name of its first rank's worker. Collective over the ranks of the learner. Every
  // learner begins with the server's parameters; if the server has none yet, it gets those of the
  // first learner. There is no warm-up. Throws rpc::CallError if the server does not answer or has
  // other parameters or fragments. `workers` must outlive this object; only the first rank uses it.
  LowCommunication(rpc::Workers& workers, const std::string& server,
                   std::shared_ptr<ProcessGroup> learner, std::vector<at::Tensor> parameters,
                   const LowCommunicationOptions& options);
  ~LowCommunication();

  // Call it after each step of the optimizer, on every rank. Collective in the steps in which a
  // fragment is sent or arrives. Errors of collectives and of RPCs. `tokens`: the number of tokens
  // that the learner has trained on in this step; a server weights updates by this number.
  void step(std::int64_t tokens = 1);
  // Collective: waits for the fragment in flight, if there is one, and takes its outer step.
  void finish();

  // Whether all learners had the same parameters after the last step(); false with a server, except
  // before the first step().
  bool is_synchronised() const { return is_synchronised_; }
  std::int64_t num_rounds() const { return num_rounds_; }
  // The payload bytes that this rank has sent to other learners or to the server.
  double bytes_sent() const { return bytes_sent_; }
  // How long this rank has waited for fragments that were still in flight when they were due.
  double seconds_waited() const { return seconds_waited_; }

  // For a checkpoint: options and progress; the parameters from which the current rounds began
  // (anchor()) and the outer momentum, each float32 [elements]. A restored run begins with rank 0's
  // parameters on every learner, without saved rounding errors and with no fragment in flight.
  optim::Metadata state() const;
  void set_state(const optim::Metadata& state);
  at::Tensor& anchor() { return anchor_; }
  at::Tensor& momentum() { return momentum_; }

 private:
  // A range of the flat parameters, and this rank's part of it.
  struct Fragment {
    std::int64_t begin = 0, size = 0;
    std::int64_t part_begin = 0, part_size = 0;  // every rank's part has this size, with padding
    std::int64_t offset = 0;                     // (steps after warm-up) % period when it is sent
    at::Tensor error;                            // [part_size]: the rounding error to add next
    std::int64_t tokens = 0;                     // trained on since the last send
    std::uint64_t version = 0;                   // the server's version of the fragment
  };
  struct InFlight;  // a fragment in flight

  LowCommunication(std::shared_ptr<ProcessGroup> peers, rpc::Workers* workers, std::string server,
                   std::shared_ptr<ProcessGroup> learner, std::vector<at::Tensor> parameters,
                   const LowCommunicationOptions& options);
  void begin_at_server();

  void send(std::size_t fragment, std::int64_t due);
  void arrive();
  void average_all();
  void encode(InFlight& round, Fragment& fragment);
  void send_to_server(InFlight& round, Fragment& fragment, double bytes);
  void finish_round(InFlight& round);
  void decode(InFlight& round) const;
  at::Tensor gather(const Fragment& fragment, const at::Tensor& part) const;
  at::Tensor read(std::int64_t begin, std::int64_t size, std::int64_t padded) const;
  void write(std::int64_t begin, const at::Tensor& values) const;
  optim::Metadata options_words() const;

  const std::shared_ptr<ProcessGroup> peers_;  // shared with the user; null: there is a server
  rpc::Workers* const workers_;                // null: there are peers
  const std::string server_;
  const std::shared_ptr<ProcessGroup> learner_;  // shared with the user
  const std::vector<at::Tensor> parameters_;
  const LowCommunicationOptions options_;
  at::Tensor anchor_, momentum_;  // flat
  std::vector<Fragment> fragments_;
  std::unique_ptr<InFlight> in_flight_;
  std::int64_t num_steps_ = 0, num_rounds_ = 0;
  double bytes_sent_ = 0, seconds_waited_ = 0;
  bool is_synchronised_ = true;
};

}  // namespace paceline
