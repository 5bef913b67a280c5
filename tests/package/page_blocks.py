#!/usr/bin/env python3
"""page_blocks.py ROOT: prints a C++ source with every block of C++ of the pages, each in a function, after declarations of the names that it takes
for granted (CONTEXT below). It compiles against an installed tree if the pages show code that users can write. Whole programs are left out: they
are the examples (readme.diff), and so are the excerpts of docs/recipes.md (readme.excerpts)."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
COMMON = """
#include <paceline/paceline.h>
#include <paceline/engine/rpc/workers.h>
#include <paceline/engine/tables/tables.h>
#include <cstdio>
#include <queue>
#include <torch/torch.h>
namespace pages {
using namespace std::chrono_literals;
using namespace paceline;
struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};
using Model = DistributedDataParallel<Net>;
extern std::shared_ptr<ProcessGroup> group, learner_group;
extern std::shared_ptr<Net> net, critic, head;
extern Model model;
extern optim::Adam optimizer;
extern optim::StepLR schedule;
extern train::Checkpointer checkpointer;
extern std::shared_ptr<data::Dataset> dataset;
extern data::DistributedSampler sampler;
extern data::DataLoader loader, test_loader;
extern at::Tensor x, y, input, images, labels, tokens, next_tokens, loss;
extern std::int64_t epoch, epochs, step, num_tokens;
extern std::unique_ptr<rpc::Workers> workers;
extern tables::Tables host;
extern std::unique_ptr<tables::Rows> rows;
extern std::vector<tables::Id> ids;
extern std::vector<float> values, gradients;
template <class... T> at::Tensor loss_of(const T&...);
"""
# Declarations before the block that contains the words.
CONTEXT = {
    "const auto sentences": "extern std::vector<std::string> texts; extern std::vector<std::int64_t> labels; extern double pad_token;"
                            "struct Encoder { std::vector<std::int64_t> encode(const std::string&) const; }; extern Encoder tokenizer;",
    "weigh_by_count": "extern train::CountedLoss loss;",
    "paceline::JoinedStep": "std::optional<data::Batch> next_batch();",
    "MetricsLog(": "extern MetricsLog metrics; extern TensorBoardLog scalars; extern double loss;",
    "alert(": "struct Alert { template <class... T> void operator()(T&&...) const; template <class G> void train(G&) const; }; extern Alert alert;",
    "parse_mesh": "",
    "models::Gpt model(": "extern DeviceMesh mesh; extern models::GptOptions options;",
    "make_stage(": "extern PipelineSchedule schedule; extern torch::nn::Linear part_of_the_model; extern int rank; extern at::Tensor batch;"
                   "extern std::vector<at::Tensor> targets;",
    "PipelineDivision division": "extern std::vector<PipelineStage> all_layers; extern PipelineStage::Tensors micro_batch; extern Pipeline::Loss loss;",
    "ParallelBranches branches": "extern torch::nn::Linear one, three, pool;",
    "optim::AdamW optimizer": "extern std::vector<at::Tensor> matrices, biases;",
    "struct Add {": "struct Log { static constexpr std::string_view kName = \"log\"; struct Request { std::string text;"
                    " static auto fields(auto& m) { return std::tie(m.text); } }; struct Reply { static auto fields(auto&) { return std::tie(); } }; };",
    "serve<Pull>": "struct Pull { static constexpr std::string_view kName = \"pull\"; struct Request { int id = 0;"
                   " static auto fields(auto& m) { return std::tie(m.id); } }; struct Reply { int x = 0;"
                   " static auto fields(auto& m) { return std::tie(m.x); } }; };"
                   "struct Waiting { int id; rpc::Answer<Pull::Reply> answer; }; extern std::queue<Waiting> queue;",
    "class Counter": "struct Start { int value = 0; static auto fields(auto& m) { return std::tie(m.value); } };"
                     "struct Amount { int amount = 0; static auto fields(auto& m) { return std::tie(m.amount); } };"
                     "struct Total { int total = 0; static auto fields(auto& m) { return std::tie(m.total); } };",
    "saved_session": "extern tables::RowOptions options; extern std::uint64_t saved_session, saved_sequence;",
    "RemoteEmbedding embedding": "struct Clicks { at::Tensor ids; }; extern Clicks batch, next_batch;",
    "DenseTable dense": "extern int num_workers; extern data::Batch batch;",
    "tables::RowServer server": "extern tables::RowOptions options;",
    "TableCheckpoints checkpoints": "extern std::string position;",
}


def compilable(code):
    """The code with its placeholders replaced: `...` stands for what the reader writes."""
    code = re.sub(r"(-> data::Sample) \{ \.\.\. \}", r"\1 { return {}; }", code)
    code = code.replace("{ ... batch.data, batch.target, batch.tensors ... }", "{ (void)batch; }").replace("for (...)", "for (;;)")
    code = code.replace("train(*group);", "alert.train(*group);")
    return re.sub(r"^(\s*)\.\.\.(?= |$)", r"\1", code, flags=re.M)


def blocks():
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        if path.name in ("api.md", "recipes.md"):
            continue
        for match in re.finditer(r"^```cpp\n(.*?)^```", text, re.M | re.S):
            if "int main(" not in match[1]:
                yield path.relative_to(ROOT), text.count("\n", 0, match.start(1)) + 1, compilable(match[1])


headers, body, number = set(), "", 0
for page, line, code in blocks():
    number += 1
    headers.update(re.findall(r"^#include .*$", code, re.M))
    code = re.sub(r"^#include .*$", "", code, flags=re.M)
    before = "".join(text for words, text in CONTEXT.items() if words in code)
    # Classes cannot have templates within a function, so they come before it; blank lines keep the numbers of the lines.
    classes = ""
    for match in re.finditer(r"^(?:struct|class) \w+ \{.*?^\};\n", code, re.M | re.S):
        classes += f'#line {line + code.count(chr(10), 0, match.start())} "{page}"\n{match[0]}'
    code = re.sub(r"^(?:struct|class) \w+ \{.*?^\};\n", lambda found: "\n" * found[0].count("\n"), code, flags=re.M | re.S)
    aliases = "".join(re.findall(r"^namespace \w+ = [\w:]+;$", code, re.M)) if classes else ""
    body += f'namespace block_{number} {{\n{aliases}{before}\n{classes}void show() {{\n#line {line} "{page}"\n{code}}}\n}}\n'
if number < 30:
    sys.exit(f"page_blocks: only {number} blocks of C++ were found in the pages")
print("// Made by page_blocks.py.\n" + COMMON.replace("namespace pages", "\n".join(sorted(headers)) + "\nnamespace pages", 1) + body + "}  // namespace pages")
