#include "examples/train_recommender/options.h"

#include <limits>

#include "examples/table_job.h"
#include "examples/training_flags.h"

namespace train_recommender {

using training_flags::FlagGroup;

constexpr const char* kExamples =
    "\nExamples:\n  train_recommender\n"
    "  paceline run --nproc-per-node 2 train_recommender --skew 1.3\n"
    "  paceline run --nproc-per-node 2 train_recommender --consistency synchronous\n"
    "  paceline run --roles trainer=2,server=1 --until trainer train_recommender\n"
    "  train_recommender --movielens ml-100k --epochs 4";

Options parse_options(int argc, char** argv) {
  Options options;
  std::string consistency = "asynchronous";
  bool no_prefetch = false;
  CLI::App app("Trains a recommender whose rows are in a table that all trainers share",
               "train_recommender");
  app.footer(kExamples);
  constexpr long kMaxCount = training_flags::kMaxCount;

  FlagGroup data(app, "Data");
  data.value("--movielens", options.movielens, "DIR",
             "Folder of MovieLens-100k [synthetic clicks]");
  data.number("--skew", options.synthetic.skew, "Exponent of the power law of the ids", 10);
  data.count("--samples", options.synthetic.samples, "Synthetic clicks for training", 1, kMaxCount);
  data.count("--fields", options.synthetic.fields, "Ids of each synthetic click", 1, 1000);
  data.count("--rows", options.synthetic.rows, "Ids of each field", 1, 1L << 30);

  FlagGroup model(app, "Model");
  model.count("--width", options.model.width, "Elements of a row", 1, 16384);
  model.count("--hidden", options.model.hidden, "Features of the MLPs", 2, 1000000);

  FlagGroup tables(app, "Table");
  tables.value("--consistency", consistency, "MODE", "synchronous, bounded:S or asynchronous");
  tables.flag("--no-prefetch", no_prefetch, "Pull a batch's rows only when they are needed");
  tables.number("--row-lr", options.row_lr, "Learning rate of the rows (row-wise Adagrad)");

  FlagGroup training(app, "Training");
  training.number("--lr", options.lr, "Learning rate of the dense part (Adam)");
  training.count("--batch-size", options.batch_size, "Samples of each trainer in a step", 1,
                 kMaxCount);
  training.count("--epochs", options.epochs, "Passes over the training data", 1, kMaxCount);
  training.count("--seed", options.seed, "Seed of data and weights", 0,
                 std::numeric_limits<long>::max());
  training.count("--threads", options.process.threads,
                 "Threads of each rank; 0: the launcher's choice", 0, 4096);
  training.value("--metrics", options.metrics, "FILE", "Write the results as JSON lines");
  training_flags::parse(argc, argv, app, [&](const paceline::apps::CommandLine&) {
    options.consistency = table_job::consistency_in(consistency);
    options.synthetic.seed = options.seed;
    options.prefetch = !no_prefetch;
  });
  return options;
}

}  // namespace train_recommender
