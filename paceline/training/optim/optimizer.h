#pragma once

// Of an optimizer's parameters: which are parts of larger ones, where a model is divided among
// ranks, so that norms are those of the whole model, each parameter counted once. A value.
//
//   optimizer.set_model_parts({.model = ..., .layers = mesh.group("tp"), .divided = {weight}, ...});
//
// train::model_parts() (training/train/training_step.h) fills one in for a model whose layers say
// how they are divided.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/collectives/memory/one_copy.h"
#include "paceline/training/optim/divided_parameters.h"
#include "paceline/training/optim/kernels.h"
#include "paceline/training/optim/tensor_blocks.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {

struct ModelParts {
  // All ranks that together have one model; null: this one has all of it.
  std::shared_ptr<ProcessGroup> model;
  // The ranks among which single parameters are divided; null: none are.
  std::shared_ptr<ProcessGroup> layers;
  // Parameters of which this rank has a part, and the other ranks of `layers` the rest. The same
  // ones, in the optimizer's order, on all of these ranks.
  std::vector<at::Tensor> divided = {};
  // Parameters of which other ranks of `model` have the same values, and count them.
  std::vector<at::Tensor> copies = {};
};

// Error(kInvalid), naming `caller`, for parameters that are known to be one rank's share of a model
// (training/tensor/tensor_marks.h): a norm over them is not the model's. The second: for parameters
// that are themselves parts of larger ones, whose own norms are not those of the whole.
void require_whole_model(const char* caller, const std::vector<at::Tensor>& parameters);
void require_whole_parameters(const char* caller, const std::vector<at::Tensor>& parameters);

// Optimizers that take a whole step in one pass over memory: parameter, gradient and state are read
// once and written once per element, vectorised, instead of a dozen tensor operations per
// parameter. The formulas are LibTorch's; a step equals LibTorch's own to rounding.
//
// Parameters come in groups (parameter_group.h), each with a learning rate and options of its own.
//
// Where all ranks take the same step, it can be divided among them (shard()): each rank keeps the
// state of one part of the elements, updates that part, and gets the others' parts from their
// ranks. This is stage 1 of ZeRO (Rajbhandari et al., 2020). The parameters have the same bits as
// without it.
//
// The parameters can exist once a host besides, for all its ranks (ShardOptions::one_copy): their
// modules read the same memory, each rank's step writes its part there, and there is nothing to get
// from others of the host; what other hosts' ranks have updated crosses the network once a host. A
// write to a parameter outside of a step ends the process, after a
// line that names it (one_copy.h); load what is to be loaded with writable_parameters().
//
// Hosts can divide the parameters among them as well (ShardOptions::divide_hosts): each keeps the
// parts of its ranks, and the rest comes unit by unit while operations read it.
//
// Gradients can be divided too (ShardOptions::unit_bytes; stage 2 of ZeRO): each rank then has
// those of its part only, which a backward pass brings (fully_shard.h), and `.grad` stays undefined
// between passes: to read it is Error(kInvalid). Clip and unscale them through the optimizer
// (clip_gradients.h, grad_scaler.h).
//
// Where the model itself is divided among ranks, by stages or by parts of layers, tell it by
// set_model_parts(): clipping, loss scaling and the norms of LAMB and LARS are then of the whole
// model.
//
// 16-bit parameters (bfloat16, float16) have a float32 master in the state: a step reads the 16-bit
// gradient, updates the master and rounds it into the parameter. Where a parameter is not its
// rounded master any more, because it was loaded or averaged since, the master becomes the
// parameter.
//
// The state and the parameters are guarded: each step adds up the words that it writes (modulo
// 2^32) and the next one those that it reads, while it has them in hand anyway. A difference is
// memory that changed by itself, DamagedState that names tensor and step, right after that
// parameter's update; when the step is divided, the group is aborted with it. verify_state() looks
// at once. What a step does not read is added up for this alone: parameters without a gradient,
// and this rank's copies of the parts that other ranks update.
//
// A program may write to parameters between steps. Operations of LibTorch and set_data() are
// noticed by themselves (write_mark.h): what they leave is what the next step expects. A write
// through data() or data_ptr() leaves no trace: hold writable_parameters() meanwhile.
//
// Parameters must be dense float32, bfloat16 or float16 tensors on the CPU; gradients have these
// types too. A gradient in another memory layout is brought into the parameter's.
//
// Thread safety: none. A step uses LibTorch's intra-op threads.

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct ShardOptions {
  // One copy of the parameters for the ranks of each host. Error(kUnsupported) where these share no
  // memory, and where hosts have different numbers of ranks.
  bool one_copy = false;
  // Of parameters(), for the line about a write outside of a step; empty: their numbers.
  std::vector<std::string> names = {};
  // Above 0: gradients are divided too, in units of about so many bytes of parameters.
  std::size_t unit_bytes = 0;
  // Units of the caller's choice, such as a block's parameters; unit_bytes is for the others.
  std::vector<std::vector<at::Tensor>> units = {};
  // With one copy and units, on several hosts: each host keeps the parts of its ranks alone, and
  // has a unit whole while operations read it (divided_parameters.h).
  bool divide_hosts = false;
};

// Parameters whose gradients are reduced together, each rank's part to that rank.
struct GradientUnit {
  std::vector<std::size_t> parameters;  // their numbers, in the order of `layout`
  FlatLayout layout;                    // with a part for each rank
  std::size_t number = 0;               // of the optimizer's
};

// What one rank keeps of a tensor of state(): a run of its elements, in the order of its memory.
struct StatePart {
  std::string name;
  at::Tensor like;         // the parameter that the whole has the shape and the strides of
  at::Tensor elements;     // one float32 row, the optimizer's own memory; may be empty
  std::int64_t first = 0;  // where they begin in the whole
};

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Collective; before the first step. From now on step(), state() and set_state() are collective
  // too. Requires: the same parameters, with the same values, on every rank, and at every step the
  // same gradients (DistributedDataParallel's). The parameters move into the group's symmetric
  // memory, or into the one copy. Nothing happens in a group of one.
  void shard(std::shared_ptr<ProcessGroup> group, const ShardOptions& options = {});
  // What these two return may be held several times at once, and longer than the optimizer.
  // While what this returns lives, this process may write to the parameters from outside of a step,
  // in any way, the same values as every other rank. With one copy nothing else may write to them.
  // Collective where hosts divide the parameters: they are whole for so long too.
  std::shared_ptr<void> writable_parameters() const;
  bool has_one_copy() const { return copy_ != nullptr; }
  // Where hosts divide the parameters: collective, and so is its end; while what this returns
  // lives, they are whole, for reads that are no operations of LibTorch. Null otherwise.
  std::shared_ptr<void> whole_parameters() const;
  bool divides_hosts() const { return host_parts_ != nullptr; }
  // Throws why parameters could not be brought from other hosts since the last step, if so.
  void require_parameters() const;

  // Before the first step. From then on clip_grad_norm(), grad_norm() and GradScaler are collective
  // over `parts.model`, step() with norms (LAMB, LARS) over `parts.layers`.
  void set_model_parts(const ModelParts& parts);
  // Null: this rank has the whole model.
  ProcessGroup* model_group() const { return parts_.model.get(); }
  // Error(kInvalid), naming `caller`, where parameters are known to be a share of a model
  // (training/tensor/tensor_marks.h) and set_model_parts() has not told of the rest.
  void require_model_parts(const char* caller) const;
  // Whether norms over the model count what this rank has of the parameter.
  bool counts_in_norms(std::size_t parameter) const { return !is_copy_[parameter]; }

  // Called at the beginning of each step; empty: nothing is.
  void set_before_step(std::function<void()> before_step) { before_step_ = std::move(before_step); }
  // Parameters without a gradient are left as they are. DamagedState when the state or a parameter
  // is not what the step before left.
  void step();
  // Drops the gradients, so that the next backward pass writes new ones instead of adding to zeros.
  void zero_grad();
  // The gradients that this rank has: whole ones, or, where they are divided, of its part.
  // Error(kInvalid) for those that are not dense float32, bfloat16 or float16 tensors on the CPU.
  std::vector<OrderedGradient> gradients() const;
  // Their memory, to change them in place; errors as above.
  std::vector<at::Tensor> gradient_memory() const;

  // Where gradients are divided: what they are divided into, in about the order in which a backward
  // pass brings them, and whose gradients are there, on some rank or other.
  bool shards_gradients() const { return shards_gradients_; }
  // Whether some optimizer of this process divides this parameter's gradient. Any thread.
  static bool divides_gradient_of(const at::Tensor& parameter) {
    return divides_gradient_of(parameter.unsafeGetTensorImpl());
  }
  static bool divides_gradient_of(const c10::TensorImpl* parameter);
  std::vector<GradientUnit> gradient_units() const;
  // This rank's part of a unit's gradients, a float32 row: what was stored there since zero_grad(),
  // and else memory with any values.
  at::Tensor gradient_part(std::size_t unit);
  bool has_gradient(std::size_t parameter) const { return has_gradient_[parameter]; }
  void set_has_gradient(std::size_t parameter) { has_gradient_[parameter] = true; }

  std::size_t num_groups() const { return learning_rates_.size(); }
  double learning_rate(std::size_t group = 0) const { return learning_rates_.at(group); }
  const std::vector<double>& learning_rates() const { return learning_rates_; }
  // Of every group. Error(kInvalid) unless it is finite and at least 0.
  void set_learning_rate(double learning_rate);
  void set_learning_rate(std::size_t group, double learning_rate);
  // Error(kInvalid) unless there is one for each group.
  void set_learning_rates(const std::vector<double>& learning_rates);
  // A group's momentum, which Adam and its like call beta1.
  virtual double momentum(std::size_t group) const = 0;
  // Error(kInvalid) unless it is in [0, 1), and where the group has none.
  virtual void set_momentum(std::size_t group, double momentum) = 0;

  // Of all groups, one after the other; each tensor once, also one that was given twice (tied
  // weights).
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // The group of parameters()[parameter].
  std::size_t group_of(std::size_t parameter) const { return group_of_[parameter]; }

  // "adam", "adamw", "sgd", "lamb" or "lars".
  virtual const char* name() const = 0;
  // The whole state: one float32 tensor like each parameter per name, "exp_avg.3" is of parameter
  // 3; "master.3", if that is a 16-bit parameter; and last "num_steps", how many steps each
  // parameter has taken. The tensors may or may not be the optimizer's own. The learning rates are
  // not in it.
  NamedTensors state() const;
  // As state(), without its last tensor, but what this rank keeps of it only; not collective.
  std::vector<StatePart> state_parts() const;
  // How many steps each parameter has taken: the last tensor of state(). Every rank keeps them all.
  std::pair<std::string, at::Tensor> num_steps() const;
  // After the memory of state_parts() was written from outside: that these are the steps which each
  // parameter has taken, and that what is there, and the parameters, is right.
  void adopt_state(const std::vector<std::int64_t>& num_steps);
  // The runs [first, last) of a parameter's elements, in the order of its memory, that this rank
  // has to save and to load, so that all ranks together do all. With one copy to load those that no
  // other rank of its host loads; where hosts divide the parameters those that it keeps; otherwise
  // all.
  std::vector<std::pair<std::int64_t, std::int64_t>> elements_to_save(std::size_t parameter) const;
  std::vector<std::pair<std::int64_t, std::int64_t>> elements_to_load(std::size_t parameter) const;
  // Element 0, in the order of its memory, where a load may write it. All ranks first call
  // begin_loading(), when none reads the parameters, and none may until all have written.
  std::byte* parameter_to_write(std::size_t parameter) const;
  void begin_loading();
  // Whose ranks the state is divided among; null when it is not.
  ProcessGroup* shard_group() const { return group_.get(); }
  // Requires: what state() gave, with other values. Error(kInvalid) when it is another optimizer's.
  void set_state(const NamedTensors& state);
  // Reads all that this rank keeps of the state and of the parameters. DamagedState when it is not
  // what the last step or set_state() left. Local.
  void verify_state() const;
  // What this rank keeps.
  std::size_t num_state_bytes() const;
  std::size_t num_gradient_bytes() const;
  // Seconds that steps, and operations on divided parameters, have spent on the other ranks' parts
  // since the last call.
  double take_exposed_seconds();

 protected:
  static constexpr std::size_t kMaxStates = 2;

  // The parameters of one group.
  struct GroupTensors {
    std::vector<at::Tensor> parameters;
    double learning_rate = 0;
  };
  enum class Norms : std::uint8_t { kNone, kPerParameter };

  // `state_names`: one zeroed tensor like each parameter is kept per name. Error(kInvalid) for a
  // parameter that is in two groups.
  Optimizer(const std::vector<GroupTensors>& groups, std::vector<std::string> state_names,
            Norms norms = Norms::kNone);
  // One more, as GroupedOptimizer::add_param_group() has it.
  void add_group(const GroupTensors& group);
  bool has_state() const { return !state_names_.empty(); }

  // One parameter's elements [0, count). state[i] belongs to state_names[i]; to `sums` a kernel
  // adds what it read and wrote, as kernels.h says.
  struct Slice {
    float* parameter;  // of a 16-bit parameter the master
    const float* gradient;
    float* const* state;
    WordSums* sums;
    std::int64_t count;
    std::int64_t step;  // of this parameter, from 1: a step without a gradient does not count
    std::size_t group;
  };
  // Two norms over a whole parameter.
  using NormPair = std::array<double, 2>;

  // `norms`: of measure(), roots taken; zeros without Norms::kPerParameter.
  virtual void update(const Slice& slice, const NormPair& norms) const = 0;
  // With Norms::kPerParameter called first: the squares' sums over these elements, at most kBlock.
  virtual NormPair measure(const Slice& slice) const;

 private:
  // Places among the sums of a parameter. What kernels take for the parameter comes first: the
  // parameter or, of 16 bits, its master. Then the state, then a 16-bit parameter itself.
  static constexpr std::size_t kValues = 0;
  static constexpr std::size_t kFirstState = 1;
  static constexpr std::size_t kRounded = kFirstState + kMaxStates;
  static constexpr std::size_t kMaxSums = kRounded + 1;
  using Sums = std::array<WordSums, kMaxSums>;

  // Parameters of one element type: all of them, or those of a unit.
  struct Row {
    at::ScalarType type;
    std::vector<std::size_t> parameters;  // their numbers
    std::vector<at::Tensor> tensors;
    FlatLayout layout;
    at::Tensor flat;                // the parameters, when sharded, as a step writes them
    std::vector<at::Tensor> state;  // [name]: this rank's part; of a 16-bit row last the master
    at::Tensor gradients;  // this rank's part, where they are divided; from their reduction
                           // to zero_grad()
  };
  // Where a parameter lies.
  struct Place {
    std::size_t row = 0;
    std::size_t index = 0;
  };
  // Elements [begin, end) of a parameter, in one block of its row, and where their norms go.
  struct Piece {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::size_t slot = 0;
  };

  void add_parameters(const std::vector<at::Tensor>& tensors, std::size_t group);
  void make_rows(const std::vector<std::vector<std::size_t>>& plan);
  void allocate_state();
  void make_pieces();
  const Row& row_of(std::size_t parameter) const { return rows_[places_[parameter].row]; }
  bool has_master(std::size_t parameter) const;
  std::int64_t own_begin(const Row& row) const;
  // Of element 0 of a parameter, in the state of its row.
  std::int64_t state_offset(std::size_t parameter) const;
  std::pair<std::int64_t, std::int64_t> elements_in(std::size_t parameter, int part) const;
  std::pair<std::int64_t, std::int64_t> own_elements(std::size_t parameter) const;
  at::Tensor own_state(std::size_t parameter, std::size_t name) const;
  std::size_t num_states(const Row& row) const { return row.state.size(); }
  std::string state_name(std::size_t name, std::size_t parameter) const;
  bool has_stepped() const;

  void measure_norms(const std::vector<OrderedGradient>& gradients);
  void exchange_norms();
  void add_up_divided_norms();
  NormPair sums_of_norms(std::size_t parameter) const;
  NormPair norms_of(std::size_t parameter) const;
  void update_parameter(const OrderedGradient& gradient);
  template <class Visit>
  Sums for_slices(const OrderedGradient& gradient, std::int64_t begin, std::int64_t end,
                  bool writes, const Visit& visit) const;
  static void merge(Sums& sums, const Sums& more);

  // optimizer_guard.cpp
  bool is_unwritten(std::size_t parameter) const;
  bool is_state(std::size_t parameter, std::size_t place) const;
  std::size_t place_of_parameter(std::size_t parameter) const;
  void check_sums(std::size_t parameter, const Sums& sums);
  void verify_own_state(std::size_t parameter) const;
  void verify_parameter(std::size_t parameter, bool with_own) const;
  void verify_unread_parameters(const std::vector<OrderedGradient>& gradients) const;
  void remember_parameters(const std::vector<OrderedGradient>& gradients);
  std::uint32_t sum_of_elements(std::size_t parameter, std::int64_t first, std::int64_t last) const;
  std::uint32_t sum_of_own_elements(std::size_t parameter) const;
  std::uint32_t sum_of_other_parts(std::size_t parameter) const;
  std::string described(std::size_t parameter, std::size_t place) const;
  [[noreturn]] void fail_corrupt(std::size_t parameter, const std::string& what,
                                 std::uint32_t expected, std::uint32_t found) const;

  void make_one_copy(const ShardOptions& options);
  void divide_between_hosts(const std::vector<std::size_t>& offsets,
                            const std::vector<std::string>& names);
  void split_by_host();
  void exchange_parts();
  void exchange_hosts();
  void wait_for_host();
  at::Tensor whole(const at::Tensor& own) const;

  std::vector<at::Tensor> parameters_;
  std::vector<std::size_t> group_of_;   // [parameter]
  std::vector<double> learning_rates_;  // [group]
  std::vector<std::string> state_names_;
  const Norms norms_;
  std::vector<Row> rows_;
  std::vector<Place> places_;            // [parameter]
  std::shared_ptr<ProcessGroup> group_;  // owners: the user and this; null: not sharded
  std::shared_ptr<const OneCopy> copy_;  // owners: this and the parameters; null: each rank has one
  std::shared_ptr<ProcessGroup> host_;   // the ranks that share the copy
  // Owners: this and what whole_parameters() returns. Null: each host has all of them.
  std::shared_ptr<DividedParameters> host_parts_;
  std::shared_ptr<ProcessGroup>
      peers_;                    // this rank's like on the other hosts; null: there are none
  std::vector<int> peer_ranks_;  // of peers_, in the group
  std::vector<std::array<std::uint32_t, kMaxSums>> sums_;  // [parameter] of what this rank updates
  std::vector<std::uint32_t> other_sums_;  // [parameter] of the parts here that others update
  // [parameter] as the last step left it; sums of a parameter count where its mark holds.
  // Owners: this and what writable_parameters() gives.
  std::shared_ptr<std::vector<WriteMark>> marks_ = std::make_shared<std::vector<WriteMark>>();
  std::vector<std::vector<Piece>> pieces_;  // [parameter], in order; with norms only
  std::size_t slots_a_part_ = 0;
  at::Tensor norm_sums_;  // [slot, 2]
  ModelParts parts_;
  std::vector<bool> is_copy_;            // [parameter]
  std::vector<std::size_t> divided_;     // parameters, in order
  std::vector<double> divided_norms_;    // two squares' sums of each, over all its parts
  std::vector<std::int64_t> num_steps_;  // [parameter]: those that had a gradient
  bool shards_gradients_ = false;
  std::vector<bool> has_gradient_;  // [parameter], where gradients are divided
  double exposed_seconds_ = 0;
  std::function<void()> before_step_;
};

}  // namespace paceline::optim
