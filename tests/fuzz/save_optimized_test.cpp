// Graphs written back as ONNX: read again, they give the same results.
#include <gtest/gtest.h>

#include <filesystem>

#include "graph/infer.h"
#include "graph/model.h"
#include "graph/onnx_export.h"
#include "graph/pipeline.h"
#include "graph/spell_out.h"
#include "ops/op_def.h"
#include "tests/fuzz/random_graph.h"

namespace lathe {
namespace {

std::vector<Tensor> results_of(const Graph& graph, const std::vector<Tensor>& inputs) {
  return run_reference_graph(graph, inputs);
}

void expect_equal(const std::vector<Tensor>& want, const std::vector<Tensor>& got) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(want[i].dims(), got[i].dims());
    float largest = 1;
    for (const float x : want[i].elements<float>()) largest = std::max(largest, std::abs(x));
    for (int64_t e = 0; e < want[i].size(); ++e) {
      ASSERT_NEAR(want[i].data<float>()[e], got[i].data<float>()[e], 1e-5f * largest) << "output " << i << " at " << e;
    }
  }
}

TEST(SaveOptimized, GivesAModelWithTheSameResultsForRandomGraphs) {
  const std::string path = std::filesystem::temp_directory_path() / "lathe_save_optimized_test.onnx";
  int written = 0;
  for (uint32_t seed = 500; seed < 560; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const testing::BuiltCase built = testing::build(testing::random_case(seed));
    Graph graph = built.graph;
    const Limits limits;
    infer_types(graph, limits);
    run_passes(graph, load_passes(), {OpRegistry::builtin(), limits, 8}, 99, {});
    ExportOptions options{{{"", 17}}, 8, {}};
    for (size_t i = 0; i < graph.outputs.size(); ++i) options.outputs.push_back("result" + std::to_string(i));
    export_model_file(path, graph, OpRegistry::builtin(), options);
    const Model model = import_model_file(path, OpRegistry::builtin());
    for (const NodeId id : model.graph->order()) EXPECT_TRUE(model.graph->node(id).op->domain.empty());
    EXPECT_EQ(model.graph->value(model.graph->outputs[0]).name, "result0");
    expect_equal(results_of(built.graph, built.inputs), results_of(*model.graph, built.inputs));
    if (HasFatalFailure()) break;
    ++written;
  }
  EXPECT_EQ(written, 60);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lathe
