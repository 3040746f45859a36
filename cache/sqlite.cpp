#include "cache/sqlite.h"

namespace lathe {
namespace {

// Long enough for another process's store, short enough not to look like a hang.
constexpr int kBusyTimeoutMs = 2000;

[[noreturn]] void fail(sqlite3* database, int code) {
  throw SqliteError(code & 0xff, database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code));
}

}  // namespace

SqliteStatement::SqliteStatement(sqlite3* database, const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(database, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  statement_.reset(statement);
  if (code != SQLITE_OK) fail(database, code);
}

void SqliteStatement::check(int code) const {
  if (code != SQLITE_OK) fail(sqlite3_db_handle(statement_.get()), code);
}

void SqliteStatement::bind(int index, const std::string& text) {
  check(sqlite3_bind_text64(statement_.get(), index, text.data(), text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
}
void SqliteStatement::bind(int index, int64_t number) { check(sqlite3_bind_int64(statement_.get(), index, number)); }
void SqliteStatement::bind(int index, double number) { check(sqlite3_bind_double(statement_.get(), index, number)); }

bool SqliteStatement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) fail(sqlite3_db_handle(statement_.get()), code);
  return code == SQLITE_ROW;
}

void SqliteStatement::reset() {
  sqlite3_reset(statement_.get());  // repeats the error of the last step, which has been thrown already
  sqlite3_clear_bindings(statement_.get());
}

std::string SqliteStatement::text(int column) const {
  const unsigned char* bytes = sqlite3_column_text(statement_.get(), column);
  const auto size = static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column));
  return bytes == nullptr ? std::string() : std::string(reinterpret_cast<const char*>(bytes), size);
}
int64_t SqliteStatement::integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
double SqliteStatement::real(int column) const { return sqlite3_column_double(statement_.get(), column); }

SqliteDatabase::SqliteDatabase(const std::string& uri, int flags) {
  sqlite3* database = nullptr;
  const int code = sqlite3_open_v2(uri.c_str(), &database, flags | SQLITE_OPEN_URI | SQLITE_OPEN_NOMUTEX, nullptr);
  database_.reset(database);
  if (code != SQLITE_OK) fail(database, code);
  sqlite3_busy_timeout(database, kBusyTimeoutMs);
}

void SqliteDatabase::execute(const char* sql) {
  const int code = sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(database_.get(), code);
}

int64_t SqliteDatabase::query_integer(const char* sql) {
  SqliteStatement statement(database_.get(), sql);
  return statement.step() ? statement.integer(0) : 0;
}

}  // namespace lathe
