#include "cache/tuning_cache.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "cache/sqlite.h"
#include "lathe/error.h"

// The file: SQLite 3, application_id "LTHE", user_version = kSchema, one table:
//   plans(cpu, threads, family, task | candidate, nanoseconds, spread, tuned_at, build), keyed by the first four.

namespace lathe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSchema = 1;
constexpr int64_t kApplicationId = 0x4c544845;  // "LTHE": another program's file is not ours to write

constexpr const char* kCreate =
    "CREATE TABLE plans(cpu TEXT NOT NULL, threads INTEGER NOT NULL, family TEXT NOT NULL, task TEXT NOT NULL,"
    " candidate TEXT NOT NULL, nanoseconds REAL NOT NULL, spread REAL NOT NULL, tuned_at INTEGER NOT NULL,"
    " build TEXT NOT NULL, PRIMARY KEY(cpu, threads, family, task)) WITHOUT ROWID;"
    "PRAGMA application_id = 1280591941; PRAGMA user_version = 1;";
static_assert(kApplicationId == 1280591941 && kSchema == 1, "kCreate repeats them as text");

constexpr const char* kFind =
    "SELECT candidate, nanoseconds, spread, tuned_at, build FROM plans"
    " WHERE cpu = ?1 AND threads = ?2 AND family = ?3 AND task = ?4";

constexpr const char* kStore =
    "INSERT INTO plans VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
    " ON CONFLICT(cpu, threads, family, task) DO UPDATE SET candidate = excluded.candidate,"
    " nanoseconds = excluded.nanoseconds, spread = excluded.spread, tuned_at = excluded.tuned_at,"
    " build = excluded.build"
    " WHERE excluded.nanoseconds < nanoseconds OR (excluded.tuned_at >= tuned_at AND"
    " (excluded.candidate = candidate OR excluded.build <> build))";

// One line for one file in one process, however many sessions open it.
void warn_once(const std::string& path, const std::string& problem) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  if (!warned.insert(path).second) return;
  fmt::print(stderr, "lathe: tuning cache '{}' is not used: {}\n", path, problem);
}

// SQLite's URI form of a path: '%', '?' and '#' would end or change it.
std::string uri_of(const std::string& path, const char* parameters) {
  std::string uri = "file:";
  for (char c : path) {
    if (c == '%' || c == '?' || c == '#') {
      uri += fmt::format("%{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      uri += c;
    }
  }
  return uri + parameters;
}

void bind_key(SqliteStatement& statement, const TuningKey& key) {
  statement.bind(1, key.cpu);
  statement.bind(2, static_cast<int64_t>(key.threads));
  statement.bind(3, key.family);
  statement.bind(4, key.task);
}

// Throws Error when the file is not a cache of this schema.
void check_schema(SqliteDatabase& database) {
  if (database.query_integer("PRAGMA application_id") != kApplicationId)
    throw Error(ErrorCode::io, "it is another program's database");
  const int64_t schema = database.query_integer("PRAGMA user_version");
  if (schema != kSchema)
    throw Error(ErrorCode::io, fmt::format("its schema is {}, this build reads {}", schema, kSchema));
}

// Of two first users one is told at once that the file is busy: SQLite does not wait for a change of the journal.
void write_ahead(SqliteDatabase& database) {
  constexpr int kTries = 500;
  constexpr auto kPause = std::chrono::milliseconds(4);
  for (int i = 1;; ++i) {
    try {
      return database.execute("PRAGMA journal_mode = WAL");
    } catch (const SqliteError& error) {
      if (error.code() != SQLITE_BUSY || i == kTries) throw;
    }
    std::this_thread::sleep_for(kPause);
  }
}

bool is_empty(SqliteDatabase& database) { return database.query_integer("SELECT count(*) FROM sqlite_master") == 0; }

// SQLite would wait for the other end of a pipe.
void check_regular(const std::string& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) throw Error(ErrorCode::io, "not a regular file");
}

std::unique_ptr<SqliteDatabase> open_writable(const std::string& path) {
  check_regular(path);
  if (const fs::path folder = fs::path(path).parent_path(); !folder.empty()) fs::create_directories(folder);
  auto database = std::make_unique<SqliteDatabase>(uri_of(path, ""), SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (is_empty(*database)) {
    write_ahead(*database);
    database->execute("BEGIN IMMEDIATE");  // two first users: one creates, the other finds
    if (is_empty(*database)) database->execute(kCreate);
    database->execute("COMMIT");
  }
  check_schema(*database);
  database->execute("PRAGMA synchronous = NORMAL");
  return database;
}

// Null when there is no file, or nothing in it yet.
std::unique_ptr<SqliteDatabase> open_readable(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return nullptr;
  check_regular(path);
  try {
    auto database = std::make_unique<SqliteDatabase>(uri_of(path, ""), SQLITE_OPEN_READONLY);
    if (is_empty(*database)) return nullptr;  // somebody else is about to create its table
    check_schema(*database);
    return database;
  } catch (const SqliteError& error) {
    // A file in WAL mode needs its index beside it; in a folder that cannot be written, nobody else writes either.
    if (error.code() != SQLITE_CANTOPEN && error.code() != SQLITE_READONLY) throw;
  }
  auto database = std::make_unique<SqliteDatabase>(uri_of(path, "?immutable=1"), SQLITE_OPEN_READONLY);
  check_schema(*database);
  return database;
}

}  // namespace

struct TuningCache::State {
  std::string path;
  Access access;
  mutable std::mutex mutex;
  std::string problem;
  std::unique_ptr<SqliteDatabase> database;  // null: nothing is found or stored
  std::unique_ptr<SqliteStatement> find, store;

  void open();
  void give_up(const std::string& why);
  // Runs `action` while the database is usable; a fault inside ends its use, being busy does not.
  template <class Action>
  void use(Action action);
};

void TuningCache::State::give_up(const std::string& why) {
  find.reset();
  store.reset();
  database.reset();
  problem = why;
  if (access == Access::read_only) warn_once(path, why);  // a run is none the worse; who writes asks for problem()
}

template <class Action>
void TuningCache::State::use(Action action) {
  const std::lock_guard lock(mutex);
  if (database == nullptr) return;
  try {
    action();
  } catch (const SqliteError& error) {
    if (error.code() != SQLITE_BUSY && error.code() != SQLITE_LOCKED) give_up(error.what());
  }
}

void TuningCache::State::open() {
  if (path.empty()) return;
  try {
    database = access == Access::read_write ? open_writable(path) : open_readable(path);
    if (database == nullptr) return;
    find = std::make_unique<SqliteStatement>(database->get(), kFind);
    if (access == Access::read_write) store = std::make_unique<SqliteStatement>(database->get(), kStore);
  } catch (const std::exception& error) {  // SqliteError, Error or filesystem_error
    give_up(error.what());
  }
}

TuningCache::TuningCache(const std::string& path, Access access) : state_(std::make_unique<State>()) {
  state_->path = path;
  state_->access = access;
  state_->open();
}

TuningCache::~TuningCache() = default;

std::optional<TunedPlan> TuningCache::find(const TuningKey& key) const {
  std::optional<TunedPlan> plan;
  state_->use([&] {
    SqliteStatement& find = *state_->find;
    find.reset();
    bind_key(find, key);
    if (find.step()) plan = TunedPlan{find.text(0), find.real(1), find.real(2), find.integer(3), find.text(4)};
    find.reset();  // ends the read, so that the write-ahead log can be folded in
  });
  return plan;
}

bool TuningCache::store(const TuningKey& key, const TunedPlan& plan) {
  bool stored = false;
  state_->use([&] {
    if (state_->store == nullptr) return;
    SqliteStatement& store = *state_->store;
    store.reset();
    bind_key(store, key);
    store.bind(5, plan.candidate);
    store.bind(6, plan.nanoseconds);
    store.bind(7, plan.spread);
    store.bind(8, plan.tuned_at);
    store.bind(9, plan.build);
    store.step();
    store.reset();
    stored = sqlite3_changes(state_->database->get()) > 0;
  });
  return stored;
}

int64_t TuningCache::size() const {
  int64_t rows = 0;
  state_->use([&] { rows = state_->database->query_integer("SELECT count(*) FROM plans"); });
  return rows;
}

const std::string& TuningCache::problem() const { return state_->problem; }

std::string cpu_key(const CpuFacts& facts, Isa isa) {
  return fmt::format("{} {}.{}.{} l1d={} l2={} l3={} {}", facts.vendor, facts.family, facts.model, facts.stepping,
                     facts.l1d_bytes, facts.l2_bytes, facts.l3_bytes, name_of(isa));
}

std::string tuning_cache_path(const std::string& option) {
  if (!option.empty()) return option;
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text != nullptr ? text : "");
  };
  if (std::string path = variable("LATHE_CACHE"); !path.empty()) return path;
  if (const std::string folder = variable("XDG_CACHE_HOME"); !folder.empty()) return folder + "/lathe/tuning.db";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/lathe/tuning.db";
}

}  // namespace lathe
