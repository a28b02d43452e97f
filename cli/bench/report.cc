#include "cli/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "cli/machine.h"
#include "cli/terminal.h"

namespace headwater::cli {
namespace {

std::string us(double value) {
  return value < 10.0 ? fmt::format("{:.2f}", value) : value < 1000.0 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

}  // namespace

double geometric_mean_ratio(const std::vector<Row>& rows) {
  double sum = 0.0;
  int64_t count = 0;
  for (const Row& row : rows) {
    if (!row.fault.empty() || row.floor_ratio <= 0.0) continue;
    sum += std::log(row.floor_ratio);
    ++count;
  }
  return count > 0 ? std::exp(sum / static_cast<double>(count)) : 0.0;
}

double Conditions::share_of_known() const { return std::min(ceilings.fma_gflops / known.fma_gflops, ceilings.dram_gbps / known.dram_gbps); }

Ceilings best_known(const std::string& directory, const Ceilings& now) {
  Ceilings best = now;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
    if (!json.is_object() || json.value("cpu", nlohmann::json()) != cpu_name() || !json.contains("ceilings")) continue;
    const nlohmann::json& c = json["ceilings"];
    if (!c.is_object() || c.value("threads", nlohmann::json()) != now.threads || c.value("isa", nlohmann::json()) != now.isa) continue;
    for (const auto& [key, value] : {std::pair{"fma_gflops", &best.fma_gflops}, std::pair{"dram_gbps", &best.dram_gbps}}) {
      if (c.contains(key) && c[key].is_number()) *value = std::max(*value, c[key].get<double>());
    }
  }
  return best;
}

std::string ceilings_line(const Conditions& conditions) {
  const Ceilings& c = conditions.ceilings;
  std::string line = fmt::format(
      "{} thread{}: {:.1f} GFLOP/s of float32 multiply-adds ({}), {:.1f} GB/s read from memory; lowest sample {:.0f} % of the best",
      c.threads, c.threads == 1 ? "" : "s", c.fma_gflops, c.isa, c.dram_gbps, 100.0 * conditions.steadiness);
  if (!conditions.valid()) {
    line += fmt::format("\nnot valid: this machine has shown {:.1f} GFLOP/s and {:.1f} GB/s; a run counts from {:.0f} % of both",
                        conditions.known.fma_gflops, conditions.known.dram_gbps, 100.0 * kValidShare);
  }
  return line;
}

namespace {

// A column of the table; `optional`: left out where every cell is empty.
struct Column {
  const char* head;
  bool optional;
  std::string (*cell)(const Row& row);
};

std::string ratio_or_nothing(double value) { return value > 0.0 ? fmt::format("{:.2f}", value) : std::string(); }

constexpr Column kColumns[] = {
    {"shape", false, [](const Row& r) { return printable(r.name); }},
    {"min us", false, [](const Row& r) { return us(r.min_us); }},
    {"median us", false, [](const Row& r) { return us(r.median_us); }},
    {"spread %", false, [](const Row& r) { return fmt::format("{:.1f}", 100.0 * r.spread); }},
    {"GB/s", false, [](const Row& r) { return fmt::format("{:.1f}", r.gbps); }},
    {"GFLOP/s", false, [](const Row& r) { return fmt::format("{:.1f}", r.gflops); }},
    {"floor us", false, [](const Row& r) { return us(r.floor_us); }},
    {"bound", false, [](const Row& r) { return std::string(r.memory_bound ? "memory" : "FMA"); }},
    {"min/floor", false, [](const Row& r) { return fmt::format("{:.3f}", r.floor_ratio); }},
    {"reach", true, [](const Row& r) { return ratio_or_nothing(r.reach); }},
    {"of twin", true, [](const Row& r) { return ratio_or_nothing(r.over_twin); }},
    {"OpenBLAS us", true, [](const Row& r) { return r.plain_us > 0.0 ? us(r.plain_us) : std::string(); }},
    {"fewer threads", true,
     [](const Row& r) { return r.fewer_threads_us > 0.0 ? fmt::format("x {:.2f}", r.fewer_threads_us / r.min_us) : std::string(); }},
    {"runs", false, [](const Row& r) { return std::to_string(r.runs); }},
    {"copies", false, [](const Row& r) { return std::to_string(r.copies); }},
    {"plan us", false, [](const Row& r) { return us(r.plan_us); }},
    {"schedule us", false, [](const Row& r) { return us(r.schedule_us); }},
    {"schedule", false, [](const Row& r) { return human_bytes(static_cast<double>(r.schedule_bytes)); }},
    {"scratch", false, [](const Row& r) { return human_bytes(static_cast<double>(r.scratch_bytes)); }},
    {"kernel", false, [](const Row& r) { return r.kernel; }},
};

std::string table_text(const std::vector<Row>& rows) {
  std::vector<const Column*> columns;
  std::vector<std::string> heads;
  for (const Column& column : kColumns) {
    const bool empty = std::all_of(rows.begin(), rows.end(), [&](const Row& r) { return !r.fault.empty() || column.cell(r).empty(); });
    if (empty) continue;
    columns.push_back(&column);
    heads.emplace_back(column.head);
  }
  if (columns.empty()) return {};
  Table table(std::move(heads));
  for (const Row& row : rows) {
    if (!row.fault.empty()) continue;
    std::vector<std::string> cells;
    cells.reserve(columns.size());
    for (const Column* column : columns) cells.push_back(column->cell(row));
    table.add(std::move(cells));
  }
  return table.text();
}

// What the goals of the shape file say of this run.
std::string goals_text(const std::vector<Row>& rows) {
  int64_t goals = 0;
  int64_t reached = 0;
  for (const Row& row : rows) {
    if (!row.fault.empty() || row.reach == 0.0) continue;
    ++goals;
    reached += row.floor_ratio <= row.reach ? 1 : 0;
  }
  return goals == 0 ? std::string() : fmt::format("{} of {} shapes within their reach\n", reached, goals);
}

}  // namespace

std::string report_text(const std::vector<Row>& rows, const Conditions& conditions) {
  std::string out = cpu_name() + "; ceilings, " + ceilings_line(conditions) + "\n";
  if (const std::string busy = busy_machine(); !busy.empty()) out += "not a quiet machine: " + busy + "\n";
  const std::string table = table_text(rows);
  if (!table.empty()) out += "\n" + table;
  for (const Row& r : rows) {
    if (!r.fault.empty()) out += fmt::format("{}: {}\n", printable(r.name), printable(r.fault));
  }
  if (table.empty()) return out;
  out += fmt::format("\ngeometric mean of min/floor: {:.3f}\n{}", geometric_mean_ratio(rows), goals_text(rows));
  out +=
      "floor = max(FLOPs / multiply-add ceiling, visible KV bytes / memory ceiling); cold: each run reads another copy of the KV;\n"
      "GB/s and GFLOP/s at the minimum; spread = (third - first quartile) / median\n";
  if (std::any_of(rows.begin(), rows.end(), [](const Row& r) { return r.over_twin > 0.0; })) {
    out += "of twin = this min/floor over that of the shape with the same work in another form\n";
  }
  if (std::any_of(rows.begin(), rows.end(), [](const Row& r) { return r.plain_us > 0.0; })) {
    out += "OpenBLAS: the minimum of a plain baseline on the same number of threads, K and V held in float32, sinks left out\n";
  }
  if (conditions.fewer_threads > 0) {
    out += fmt::format("fewer threads: minimum with {} over minimum with {}\n", conditions.fewer_threads, conditions.ceilings.threads);
  }
  return out;
}

namespace {

nlohmann::ordered_json ceilings_json(const Ceilings& c) {
  return {{"threads", c.threads}, {"isa", c.isa}, {"fma_gflops", c.fma_gflops}, {"dram_gbps", c.dram_gbps}};
}

nlohmann::ordered_json row_json(const Row& r, int32_t fewer_threads) {
  nlohmann::ordered_json row;
  row["name"] = r.name;
  row["origin"] = r.origin;
  if (!r.fault.empty()) {
    row["fault"] = r.fault;
    return row;
  }
  row["kernel"] = r.kernel;
  row["min_us"] = r.min_us;
  row["median_us"] = r.median_us;
  row["spread"] = r.spread;
  row["gbps"] = r.gbps;
  row["gflops"] = r.gflops;
  row["floor_us"] = r.floor_us;
  row["floor_ratio"] = r.floor_ratio;
  row["bound"] = r.memory_bound ? "memory" : "fma";
  if (r.reach > 0.0) row["reach"] = r.reach;
  if (r.aim > 0.0) row["aim"] = r.aim;
  if (r.over_twin > 0.0) {
    row["twin"] = r.twin;
    row["over_twin"] = r.over_twin;
  }
  if (r.plain_runs > 0) row["openblas"] = {{"min_us", r.plain_us}, {"runs", r.plain_runs}, {"worst_error", r.plain_error}};
  if (r.fewer_threads_runs > 0) {
    row["scaling"] = {{"threads", fewer_threads},
                      {"min_us", r.fewer_threads_us},
                      {"runs", r.fewer_threads_runs},
                      {"speedup", r.fewer_threads_us / r.min_us}};
  }
  row["flops"] = r.flops;
  row["kv_bytes"] = r.kv_bytes;
  row["runs"] = r.runs;
  row["copies"] = r.copies;
  row["worst_error_over_allowance"] = r.worst_error;
  row["plan_us"] = r.plan_us;
  row["schedule_us"] = r.schedule_us;
  row["schedule_bytes"] = r.schedule_bytes;
  row["scratch_bytes"] = r.scratch_bytes;
  return row;
}

}  // namespace

nlohmann::ordered_json bench_json(const std::vector<Row>& rows, const Conditions& conditions) {
  nlohmann::ordered_json out;
  out["cpu"] = cpu_name();
  out["version"] = version();
  out["valid"] = conditions.valid();
  out["ceilings"] = ceilings_json(conditions.ceilings);
  out["ceilings"]["lowest_over_best"] = conditions.steadiness;
  out["best_known_ceilings"] = ceilings_json(conditions.known);
  out["geometric_mean_floor_ratio"] = geometric_mean_ratio(rows);
  out["rows"] = nlohmann::ordered_json::array();
  for (const Row& r : rows) out["rows"].push_back(row_json(r, conditions.fewer_threads));
  return out;
}

Result<Comparison> compare(const std::vector<Row>& rows, const nlohmann::json& baseline) {
  if (!baseline.is_object() || !baseline.contains("rows") || !baseline["rows"].is_array()) return invalid("has no array \"rows\"");
  struct Earlier {
    double min_us = 0.0;
    double spread = 0.0;
  };
  std::map<std::string, Earlier> earlier;
  for (const nlohmann::json& row : baseline["rows"]) {
    if (!row.is_object() || !row.contains("name") || !row["name"].is_string()) return invalid("has a row without a name");
    if (!row.contains("min_us")) continue;
    const double spread = row.value("spread", nlohmann::json(0.0)).is_number() ? row.value("spread", 0.0) : 0.0;
    if (!row["min_us"].is_number() || row["min_us"].get<double>() <= 0.0) return invalid("has a row whose min_us is no positive number");
    earlier[row["name"].get<std::string>()] = {row["min_us"].get<double>(), spread};
  }
  Comparison result;
  Table table({"shape", "before us", "now us", "now/before", "noise %", "verdict"});
  for (const Row& row : rows) {
    if (!row.fault.empty()) continue;
    const auto found = earlier.find(row.name);
    if (found == earlier.end()) {
      table.add({printable(row.name), "", us(row.min_us), "", "", "not in the baseline"});
      continue;
    }
    const double ratio = row.min_us / found->second.min_us;
    const double noise = std::max({0.05, row.spread, found->second.spread});
    const bool slower = ratio > 1.0 + noise;
    result.slower += slower ? 1 : 0;
    ++result.compared;
    table.add({printable(row.name), us(found->second.min_us), us(row.min_us), fmt::format("{:.3f}", ratio),
               fmt::format("{:.1f}", 100.0 * noise),
               slower                        ? "slower"
               : ratio < 1.0 / (1.0 + noise) ? "faster"
                                             : "the same"});
    earlier.erase(found);
  }
  result.text = "\nagainst the baseline\n" + table.text();
  if (!earlier.empty()) result.text += fmt::format("{} of its shapes not measured now\n", earlier.size());
  if (result.compared == 0) return invalid("shares no row with this run");
  return result;
}

}  // namespace headwater::cli
