//! Wrong configurations: each ends the start with exit code 2 and one line, which contains the key or the variable as
//! it was written, the value unless it may be a secret, and a correct form. `dormouse check` prints the same.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// The file, the variables, and the line. `$DIR` is the directory of the test.
type Row = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const ROWS: &[Row] = &[
    ("Prot = 1\n$DISK", &[], "Prot = 1: unknown key; did you mean Port?"),
    ("Nonsense = 'hush'\n$DISK", &[], "Nonsense: unknown key; docs/configuration.md lists the keys"),
    ("ApiKey = 4711\n$DISK", &[], "ApiKey: unknown key; docs/configuration.md lists the keys"),
    ("BasicAUTH = 4711\n$DISK", &[], "BasicAUTH: unknown key; docs/configuration.md lists the keys"),
    ("Tokens = 4711\n$DISK", &[], "Tokens: unknown key; docs/configuration.md lists the keys"),
    ("Addr = 'h:1'\n$DISK", &[], "Addr: unknown key; Addr is a key of a pool, such as [Pool.default]"),
    (
        "[Pool.default]\nPath = 'jobs'\nPort = 1",
        &[],
        "[Pool.default] Port = 1: unknown key; Port is a top-level key: write it before all tables",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nsnyc = 'always'",
        &[],
        "[Pool.default] snyc: unknown key; did you mean Sync?",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nPasword = 'hush'",
        &[],
        "[Pool.default] Pasword: unknown key; did you mean Password?",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nPaswrd = 4711",
        &[],
        "[Pool.default] Paswrd: unknown key; did you mean Password?",
    ),
    ("Port = 1\nport = 2\n$DISK", &[], "Port and port are the same key: remove one"),
    ("Port = = 1", &[], "c.toml: line 1 is not valid TOML: extra `=`, expected nothing"),
    ("Port = 70000\n$DISK", &[], "Port = 70000: expected a whole number from 0 to 65535"),
    ("Port = -1\n$DISK", &[], "Port = -1: expected a whole number from 0 to 65535"),
    ("Port = 'seven'\n$DISK", &[], "Port = \"seven\": expected a whole number from 0 to 65535"),
    ("Port = [7777]\n$DISK", &[], "Port: expected a whole number from 0 to 65535"),
    ("TTRSecond = 1.5\n$DISK", &[], "TTRSecond = 1.5: expected a whole number from 0 to 4294967295"),
    (
        "ttlsecond = 4294967296\n$DISK",
        &[],
        "ttlsecond = 4294967296: expected a whole number from 0 to 4294967295",
    ),
    ("TriesNum = 0\n$DISK", &[], "TriesNum = 0: expected a whole number from 1 to 65535"),
    ("TriesNum = 65536\n$DISK", &[], "TriesNum = 65536: expected a whole number from 1 to 65535"),
    (
        "TTLSecond = 5\nDelaySecond = 10\n$DISK",
        &[],
        "TTLSecond = 5 is shorter than DelaySecond = 10: such jobs would expire before they are due",
    ),
    ("EnableAccessLog = 'maybe'\n$DISK", &[], "EnableAccessLog = \"maybe\": expected true or false"),
    (
        "LogLevel = 'loud'\n$DISK",
        &[],
        "LogLevel = \"loud\": expected \"trace\", \"debug\", \"info\", \"warn\", \"warning\", \"error\", \"fatal\" or \"panic\"",
    ),
    ("LogFormat = 'xml'\n$DISK", &[], "LogFormat = \"xml\": expected \"text\" or \"json\""),
    ("LogDir = 'file'\n$DISK", &[], "LogDir = \"file\": it is a file, not a directory"),
    ("LogDir = 'file/logs'\n$DISK", &[], "LogDir = \"file/logs\": it cannot be created: file is a file"),
    (
        "LogDir = 'jobs/logs'\n$DISK",
        &[],
        "[Pool.default] Path = \"jobs\" contains LogDir = \"jobs/logs\": each pool needs a directory of its own",
    ),
    (
        "LogDir = '~/logs'\n$DISK",
        &[],
        "LogDir = \"~/logs\": ~ is not expanded: write the whole path, or ./~ for a file of that name",
    ),
    (
        "[Pool.default]\nPath = '~ann'",
        &[],
        "[Pool.default] Path = \"~ann\": ~ is not expanded: write the whole path, or ./~ for a file of that name",
    ),
    (
        "$DISK",
        &[("DORMOUSE_SECRET_KEY_FILE", "~/keys")],
        "DORMOUSE_SECRET_KEY_FILE=~/keys: ~ is not expanded: write the whole path, or ./~ for a file of that name",
    ),
    ("LogDir = 7.5\n$DISK", &[], "LogDir = 7.5: expected a string"),
    (
        "Port = 7001\nAdminPort = 7001\n$DISK",
        &[],
        "Port = 7001 and AdminPort = 7001: the two ports cannot be the same",
    ),
    (
        "Host = 'http://0.0.0.0'\n$DISK",
        &[],
        "Host = \"http://0.0.0.0\": expected only an address, without a scheme, such as \"0.0.0.0\"",
    ),
    (
        "Host = '0.0.0.0:7777'\n$DISK",
        &[],
        "Host = \"0.0.0.0:7777\": expected only an address; the port has its own key",
    ),
    ("AdminHost = ''\n$DISK", &[], "AdminHost = \"\": name the address to listen on, such as \"0.0.0.0\""),
    (
        "Host = 'my host'\n$DISK",
        &[],
        "Host = \"my host\": expected an address or a host name, such as \"0.0.0.0\"",
    ),
    ("MaxConnections = 0\n$DISK", &[], "MaxConnections = 0: expected a whole number from 1 up"),
    ("MaxParkedPolls = 0\n$DISK", &[], "MaxParkedPolls = 0: expected a whole number from 1 up"),
    ("MaxBodyMemory = 0\n$DISK", &[], "MaxBodyMemory = 0: expected a whole number from 1 up"),
    (
        "MaxConnectionsPerAddress = -1\n$DISK",
        &[],
        "MaxConnectionsPerAddress = -1: expected a whole number from 0 up",
    ),
    ("DrainSeconds = 301\n$DISK", &[], "DrainSeconds = 301: expected a whole number from 0 to 300"),
    ("WaitForStore = 3601\n$DISK", &[], "WaitForStore = 3601: expected a whole number from 0 to 3600"),
    (
        "Accounts = 'ann:hush'\n$DISK",
        &[],
        "Accounts: expected a table, such as [Accounts] with operator = \"a long password\"",
    ),
    (
        "$DISK[Accounts]\nann = ''",
        &[],
        "[Accounts] ann: the user \"ann\" needs a name and a password; neither may be empty",
    ),
    ("$DISK[Accounts]\nann = ['hush']", &[], "[Accounts] ann: expected a string"),
    ("PushHttps = 'never'\n$DISK", &[], "PushHttps = \"never\": expected \"any\" or \"only\""),
    ("PushAllow = [1]\n$DISK", &[], "PushAllow: expected a list of strings"),
    (
        "PushAllow = ['10.0.0.0/99']\n$DISK",
        &[],
        "PushAllow: \"10.0.0.0/99\" is not a network such as \"10.0.0.0/8\", an address or a host name",
    ),
    (
        "PushProxy = 'ann:hush@h'\n$DISK",
        &[],
        "PushProxy: expected a URL such as \"http://proxy.example:3128\"",
    ),
    (
        "PushCA = 'missing.pem'\n$DISK",
        &[],
        "PushCA = \"missing.pem\": the file cannot be read: No such file or directory (os error 2)",
    ),
    (
        "SecretKeyFile = 'missing.keys'\n$DISK",
        &[],
        "SecretKeyFile = \"missing.keys\": the file cannot be read: No such file or directory (os error 2)",
    ),
    ("TLSCert = 'a.pem'\n$DISK", &[], "TLSCert = \"a.pem\" is set and TLSKey is not: both are needed"),
    (
        "admintlskey = 'a.pem'\n$DISK",
        &[],
        "admintlskey = \"a.pem\" is set and AdminTLSCert is not: both are needed",
    ),
    ("TLSCert = 'file'\nTLSKey = 'file'\n$DISK", &[], "TLSCert: file: it contains no certificate"),
    (
        "TrustedProxies = ['10.0.0.0/40']\n$DISK",
        &[],
        "TrustedProxies: \"10.0.0.0/40\" is not a network such as \"10.0.0.0/8\" or an address",
    ),
    (
        "DashboardZone = 'Berlin'\n$DISK",
        &[],
        "DashboardZone: \"Berlin\" is not a known time zone: expected a name such as \"Europe/Berlin\"",
    ),
    (
        "zoneinfo = 'there'\n$DISK",
        &[],
        "zoneinfo: there: did not find any TZif files in zoneinfo time zone database",
    ),
    (
        "$DISK[Accounts]\nann = 'hush'\n[ReadOnlyAccounts]\nann = 'hush'",
        &[],
        "[ReadOnlyAccounts] ann: the user is in [Accounts] too: remove it from one of them",
    ),
    (
        "Port = 0",
        &[],
        "there is no [Pool.default]: add one with Addr = \"host:port\" or Path = \"directory\"",
    ),
    (
        "[Pool.default]\nMigrateTo = 'b'",
        &[],
        "[Pool.default]: neither Addr (a Redis) nor Cluster (a Redis Cluster) nor Path (a directory) is set",
    ),
    (
        "[Pool.other]\nPath = 'jobs'",
        &[],
        "there is no [Pool.default]: add one with Addr = \"host:port\" or Path = \"directory\"",
    ),
    ("$DISK[Pool.'a b']\nPath = 'b'", &[], "[Pool.a b]: a pool's name is letters, digits, - and _"),
    (
        "[Pool]\ndefault = 'redis://:hush@h:6379'",
        &[],
        "[Pool] default: expected a table, such as [Pool.default] with Addr = \"host:port\" or Path = \"directory\"",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nAddr = 'h:1'",
        &[],
        "[Pool.default] Addr = \"h:1\", [Pool.default] Path = \"jobs\": both Addr and Path are set: a pool is a Redis or a directory",
    ),
    ("[Pool.default]\nPath = 'file'", &[], "[Pool.default] Path = \"file\": it is a file, not a directory"),
    (
        "[Pool.default]\nPath = 'file/jobs'",
        &[],
        "[Pool.default] Path = \"file/jobs\": it cannot be created: file is a file",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nSync = 'never'",
        &[],
        "[Pool.default] Sync = \"never\": expected \"always\" or \"everysec\"",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nMinFreeDisk = 1.5",
        &[],
        "[Pool.default] MinFreeDisk = 1.5: expected a whole number from 0 up",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nDiskTimeout = 0",
        &[],
        "[Pool.default] DiskTimeout = 0: expected a whole number from 1 up",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nPassword = 'hush'",
        &[],
        "[Pool.default] Password: a pool that is a directory (Path) has no Password",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nDB = 1",
        &[],
        "[Pool.default] DB = 1: a pool that is a directory (Path) has no DB",
    ),
    (
        "[Pool.default]\nPath = 'jobs'\nTLS = true",
        &[],
        "[Pool.default] TLS = true: a pool that is a directory (Path) has no TLS",
    ),
    (
        "$DISK[Pool.b]\nPath = 'jobs'",
        &[],
        "[Pool.default] Path = \"jobs\" is also [Pool.b] Path = \"jobs\": each pool needs a directory of its own",
    ),
    (
        "$DISK[Pool.b]\nPath = './jobs/b'",
        &[],
        "[Pool.default] Path = \"jobs\" contains [Pool.b] Path = \"./jobs/b\": each pool needs a directory of its own",
    ),
    (
        "[Pool.a]\nPath = 'logdir'\n[Pool.default]\nPath = 'logdir/b'",
        &[],
        "[Pool.default] Path = \"logdir/b\" is inside [Pool.a] Path = \"logdir\": each pool needs a directory of its own",
    ),
    (
        "[Pool.default]\nPath = 'a/b'\n[Pool.c]\nPath = 'a'",
        &[],
        "[Pool.default] Path = \"a/b\" is inside [Pool.c] Path = \"a\": each pool needs a directory of its own",
    ),
    (
        "$DISK[Pool.b]\nPath = 'b'\nmigrateto = 'c'",
        &[],
        "[Pool.b] migrateto = \"c\": there is no such pool; the others are \"default\"",
    ),
    (
        "$DISK[Pool.b]\nPath = 'b'\nMigrateTo = 'b'",
        &[],
        "[Pool.b] MigrateTo = \"b\": a pool cannot migrate to itself: name another pool",
    ),
    (
        "$DISK[Pool.b]\nPath = 'b'\nMigrateTo = 'c'\n[Pool.c]\nPath = 'c'\nMigrateTo = 'default'",
        &[],
        "[Pool.b] MigrateTo = \"c\": that pool has a MigrateTo too: name the final target",
    ),
    (
        "[Pool.default]\nAddr = 'redis://ann:hush@h:6379/1'\n$ADMIN",
        &[],
        "[Pool.default] Addr: expected host:port, not a URL: use TLS, Username, Password and DB for its other parts",
    ),
    (
        "[Pool.default]\nAddr = 'hush@h:6379'\n$ADMIN",
        &[],
        "[Pool.default] Addr: expected host:port, not a URL: use TLS, Username, Password and DB for its other parts",
    ),
    (
        "[Pool.default]\nAddr = 'localhost'\n$ADMIN",
        &[],
        "[Pool.default] Addr = \"localhost\": expected a port from 1 to 65535 after the host: write host:port",
    ),
    (
        "[Pool.default]\nAddr = 'localhost:'\n$ADMIN",
        &[],
        "[Pool.default] Addr = \"localhost:\": expected a port from 1 to 65535 after the host: write host:port",
    ),
    (
        "[Pool.default]\nAddr = 'localhost:0'\n$ADMIN",
        &[],
        "[Pool.default] Addr = \"localhost:0\": expected a port from 1 to 65535 after the host: write host:port",
    ),
    (
        "[Pool.default]\nAddr = 'localhost:65536'\n$ADMIN",
        &[],
        "[Pool.default] Addr = \"localhost:65536\": expected a port from 1 to 65535 after the host: write host:port",
    ),
    (
        "[Pool.default]\nAddr = ':6379'\n$ADMIN",
        &[],
        "[Pool.default] Addr = \":6379\": the host is missing: write host:port",
    ),
    (
        "[Pool.default]\nAddr = '::1:6379'\n$ADMIN",
        &[],
        "[Pool.default] Addr = \"::1:6379\": put the IPv6 address in brackets: write [address]:port",
    ),
    (
        "[Pool.default]\nAddr = 'h:1,i:2'\n$ADMIN",
        &[],
        "[Pool.default] Addr: it lists several Sentinels, but MasterName does not say which master they watch",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'",
        &[],
        "there is no [AdminRedis] to store tokens: add one with Addr = \"host:port\"",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nSync = 'always'\n$ADMIN",
        &[],
        "[Pool.default] Sync = \"always\": a store that is a Redis (Addr) has no Sync",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nMinFreeDisk = 5\n$ADMIN",
        &[],
        "[Pool.default] MinFreeDisk = 5: a store that is a Redis (Addr) has no MinFreeDisk",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nDB = -1\n$ADMIN",
        &[],
        "[Pool.default] DB = -1: expected a whole number from 0 to 2147483647",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nLayout = 'compact'\n$ADMIN",
        &[],
        "[Pool.default] Layout = \"compact\": there is only one layout now, and the compact layout is no longer supported: remove Layout, and migrate compact pools with the version that wrote them",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nPartitions = 2\n$ADMIN",
        &[],
        "[Pool.default] Partitions = 2: it is only for pools in a Redis Cluster (Cluster)",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nPartitions = 3\n$ADMIN",
        &[],
        "[Pool.default] Partitions = 3: expected a power of two up to 4096",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nPartitions = 8192\n$ADMIN",
        &[],
        "[Pool.default] Partitions = 8192: expected a whole number from 1 to 4096",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nPrefix = 'a{b'\n$ADMIN",
        &[],
        "[Pool.default] Prefix = \"a{b\": expected 1 to 64 letters, digits, -, _, . and :",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nAddr = 'h:2'\n$ADMIN",
        &[],
        "[Pool.default] Addr = \"h:2\", [Pool.default] Cluster: both Addr and Cluster are set: a pool is a Redis or a Redis Cluster",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nPath = 'jobs'\n$ADMIN",
        &[],
        "[Pool.default] Path = \"jobs\", [Pool.default] Cluster: both Path and Cluster are set: a pool is a directory or a Redis Cluster",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nMasterName = 'm'\n$ADMIN",
        &[],
        "[Pool.default] MasterName = \"m\": a cluster has no Sentinels: remove it, or Cluster",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nDB = 1\n$ADMIN",
        &[],
        "[Pool.default] DB = 1: a Redis Cluster has only database 0: remove it, or Cluster",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nSync = 'always'\n$ADMIN",
        &[],
        "[Pool.default] Sync = \"always\": a store that is a Redis Cluster (Cluster) has no Sync",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nPartitions = 12\n$ADMIN",
        &[],
        "[Pool.default] Partitions = 12: expected a power of two up to 4096",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nSpread = ['orders']\n$ADMIN",
        &[],
        "[Pool.default] Spread = [..]: \"orders\": expected namespace/queue, where * matches any text",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nSpread = ['shop/or.ders']\n$ADMIN",
        &[],
        "[Pool.default] Spread = [..]: \"shop/or.ders\": expected namespace/queue, where * matches any text",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\nSpreadAt = 9\n$ADMIN",
        &[],
        "[Pool.default] SpreadAt = 9: queues are no longer spread automatically: remove it, and list the queues in Spread",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nSpread = ['*/*']\n$ADMIN",
        &[],
        "[Pool.default] Spread = [..]: it is only for pools in a Redis Cluster (Cluster)",
    ),
    (
        "[Pool.default]\nCluster = ['h:1', 'h']\n$ADMIN",
        &[],
        "[Pool.default] Cluster: \"h\": expected a port from 1 to 65535 after the host: write host:port",
    ),
    (
        "[Pool.default]\nCluster = ['redis://:hush@h:1']\n$ADMIN",
        &[],
        "[Pool.default] Cluster: expected host:port, not a URL: use TLS, Username, Password and DB for its other parts",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\n[AdminRedis]\nCluster = ['h:1']\nPrefix = 'p'",
        &[],
        "[AdminRedis] Prefix = \"p\": it applies only to pools of jobs, not to [AdminRedis]",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\n[AdminRedis]\nCluster = ['h:1']\nAddr = 'h:2'",
        &[],
        "[AdminRedis] Addr = \"h:2\", [AdminRedis] Cluster: both Addr and Cluster are set: a pool is a Redis or a Redis Cluster",
    ),
    (
        "[Pool.default]\nCluster = ['h:1']\n[Pool.b]\nCluster = ['h:1']\nPrefix = 'default'\n$ADMIN",
        &[],
        "[Pool.default]: [Pool.b] has the same Cluster and the same Prefix, \"default\": each pool needs a Prefix of its own",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nUsername = 'ann'\n$ADMIN",
        &[],
        "[Pool.default] Username = \"ann\" is set and Password is not: both are needed",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nSentinelPassword = 'hush'\n$ADMIN",
        &[],
        "[Pool.default] SentinelPassword: it is for Sentinels, and MasterName does not say which master they watch",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nCA = 'ca.pem'\n$ADMIN",
        &[],
        "[Pool.default] CA = \"ca.pem\": it requires TLS = true",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nTLS = true\nCert = 'c.pem'\n$ADMIN",
        &[],
        "[Pool.default] Cert = \"c.pem\" is set and Key is not: both are needed",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nTLS = true\nCA = 'missing.pem'\n$ADMIN",
        &[],
        "[Pool.default] CA = \"missing.pem\": the file cannot be read: No such file or directory (os error 2)",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nPassword = 'hush'\nPasswordFile = 'secret'\n$ADMIN",
        &[],
        "[Pool.default] PasswordFile = \"secret\": [Pool.default] Password is set too: remove one of them",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nPasswordFile = 'missing'\n$ADMIN",
        &[],
        "[Pool.default] PasswordFile = \"missing\": the file cannot be read: No such file or directory (os error 2)",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nPasswordFile = 'empty'\n$ADMIN",
        &[],
        "[Pool.default] PasswordFile = \"empty\": the file is empty",
    ),
    (
        "$DISK[AdminRedis]\nPath = 'tokens'",
        &[],
        "[AdminRedis] Path = \"tokens\": Path is for pools: without [AdminRedis], tokens are stored in the default pool's directory",
    ),
    (
        "$DISK[AdminRedis]\nAddr = 'h:1'\nWaitReplicas = 1",
        &[],
        "[AdminRedis] WaitReplicas = 1: it applies only to pools of jobs, not to [AdminRedis]",
    ),
    ("$DISK[AdminRedis]\nDB = 1", &[], "[AdminRedis]: Addr is not set: write host:port"),
    (
        "AdminRedis = 'hush'\n$DISK",
        &[],
        "AdminRedis: expected a table, such as [AdminRedis] with Addr = \"host:port\"",
    ),
    ("$DISK", &[("DORMOUSE_PORT", "seven")], "DORMOUSE_PORT=seven: expected a whole number from 0 to 65535"),
    ("$DISK", &[("DORMOUSE_PORT", "")], "DORMOUSE_PORT=: expected a whole number from 0 to 65535"),
    (
        "$DISK",
        &[("DORMOUSE_TTR_SECOND", "1.5")],
        "DORMOUSE_TTR_SECOND=1.5: expected a whole number from 0 to 4294967295",
    ),
    (
        "$DISK",
        &[("DORMOUSE_PROT", "1")],
        "the environment variable DORMOUSE_PROT matches no key; did you mean DORMOUSE_PORT?",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ADMINPROT", "1")],
        "the environment variable DORMOUSE_ADMINPROT matches no key; did you mean DORMOUSE_ADMIN_PORT?",
    ),
    (
        "$DISK",
        &[("DORMOUSE_PORT", "7001"), ("DORMOUSE_ADMIN_PORT", "7001")],
        "DORMOUSE_PORT=7001 and DORMOUSE_ADMIN_PORT=7001: the two ports cannot be the same",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ADMINPORT", "7777")],
        "Port = 7777 and DORMOUSE_ADMINPORT=7777: the two ports cannot be the same",
    ),
    (
        "$DISK",
        &[("DORMOUSE_PUSH_CA", "missing.pem")],
        "DORMOUSE_PUSH_CA=missing.pem: the file cannot be read: No such file or directory (os error 2)",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ADMIN_REDIS_PASWORD", "hush")],
        "the environment variable DORMOUSE_ADMIN_REDIS_PASWORD matches no key; did you mean DORMOUSE_ADMIN_REDIS_PASSWORD?",
    ),
    (
        "$DISK",
        &[("DORMOUSE_POOL_DEFAULT_SYNC", "never")],
        "DORMOUSE_POOL_DEFAULT_SYNC=never: expected \"always\" or \"everysec\"",
    ),
    (
        "$DISK",
        &[("DORMOUSE_POOL_DEFAULT_PASSWORD", "hush")],
        "DORMOUSE_POOL_DEFAULT_PASSWORD: a pool that is a directory (Path) has no Password",
    ),
    (
        "$DISK",
        &[("DORMOUSE_POOL_DEFAULT_SNYC", "never")],
        "the environment variable DORMOUSE_POOL_DEFAULT_SNYC matches no key; did you mean DORMOUSE_POOL_DEFAULT_SYNC?",
    ),
    (
        "$DISK",
        &[("DORMOUSE_POOL", "redis://:hush@h:6379")],
        "DORMOUSE_POOL: Pool is a table; each of its keys has a variable, see docs/configuration.md",
    ),
    (
        "$DISK",
        &[("DORMOUSE_POOL_B_PATH", "jobs")],
        "[Pool.default] Path = \"jobs\" is also DORMOUSE_POOL_B_PATH=jobs: each pool needs a directory of its own",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ADMIN_REDIS", "redis://:hush@h:6379")],
        "DORMOUSE_ADMIN_REDIS: AdminRedis is a table; each of its keys has a variable, see docs/configuration.md",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ADMIN_REDIS_DB", "hush")],
        "DORMOUSE_ADMIN_REDIS_DB: expected a whole number from 0 up",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ADMIN_REDIS_ADDR", "redis://:hush@h:6379")],
        "DORMOUSE_ADMIN_REDIS_ADDR: expected host:port, not a URL: use TLS, Username, Password and DB for its other parts",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ACCOUNTS", "ann:hush")],
        "DORMOUSE_ACCOUNTS: Accounts is a table; each of its keys has a variable, see docs/configuration.md",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ACCOUNTS_ANN", "")],
        "DORMOUSE_ACCOUNTS_ANN: the user \"ann\" needs a name and a password; neither may be empty",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ACCOUNTS_ANN", "hush"), ("DORMOUSE_ACCOUNTS_ANN_FILE", "secret")],
        "DORMOUSE_ACCOUNTS_ANN_FILE=secret: DORMOUSE_ACCOUNTS_ANN is set too: remove one of them",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ACCOUNTS_ANN_FILE", "missing")],
        "DORMOUSE_ACCOUNTS_ANN_FILE=missing: the file cannot be read: No such file or directory (os error 2)",
    ),
    (
        "$DISK",
        &[("DORMOUSE_PUSH_PROXY", "http://h"), ("DORMOUSE_PUSH_PROXY_FILE", "secret")],
        "DORMOUSE_PUSH_PROXY_FILE=secret: DORMOUSE_PUSH_PROXY is set too: remove one of them",
    ),
    ("$DISK", &[("DORMOUSE_PUSH_PROXY_FILE", "empty")], "DORMOUSE_PUSH_PROXY_FILE=empty: the file is empty"),
    ("$DISK", &[("DORMOUSE_LOG_DIR", "file")], "DORMOUSE_LOG_DIR=file: it is a file, not a directory"),
    (
        "$DISK",
        &[("DORMOUSE_TLS_CERT", "file")],
        "DORMOUSE_TLS_CERT=file is set and TLSKey is not: both are needed",
    ),
    (
        "$DISK",
        &[("DORMOUSE_ADMIN_TLS_CERT", "file"), ("DORMOUSE_ADMIN_TLS_KEY", "file")],
        "DORMOUSE_ADMIN_TLS_CERT (AdminTLSCert): file: it contains no certificate",
    ),
    (
        "$DISK",
        &[("DORMOUSE_PUSH_ALLOW", "10.0.0.0/99")],
        "DORMOUSE_PUSH_ALLOW (PushAllow): \"10.0.0.0/99\" is not a network such as \"10.0.0.0/8\", an address or a host name",
    ),
    (
        "$DISK",
        &[("DORMOUSE_TRUSTED_PROXIES", "proxy")],
        "DORMOUSE_TRUSTED_PROXIES (TrustedProxies): \"proxy\" is not a network such as \"10.0.0.0/8\" or an address",
    ),
    (
        "$DISK",
        &[("DORMOUSE_PUSH_PROXY", "ann:hush@h")],
        "DORMOUSE_PUSH_PROXY (PushProxy): expected a URL such as \"http://proxy.example:3128\"",
    ),
    (
        "$DISK",
        &[("DORMOUSE_PUSH_PROXY_FILE", "secret")],
        "DORMOUSE_PUSH_PROXY_FILE (PushProxyFile): expected a URL such as \"http://proxy.example:3128\"",
    ),
    ("$DISK", &[("DORMOUSE_PUSH_CA", "file")], "DORMOUSE_PUSH_CA (PushCA): file: it contains no certificate"),
    (
        "$DISK",
        &[("DORMOUSE_DASHBOARD_ZONE", "Berlin")],
        "DORMOUSE_DASHBOARD_ZONE (DashboardZone): \"Berlin\" is not a known time zone: expected a name such as \"Europe/Berlin\"",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\nTLS = true\n$ADMIN",
        &[("DORMOUSE_POOL_DEFAULT_CA", "file")],
        "DORMOUSE_POOL_DEFAULT_CA ([Pool.default] CA): file: it contains no certificate",
    ),
    (
        "$DISK",
        &[("DORMOUSE_POOL_DEFAULT_MIGRATE_TO", "b")],
        "DORMOUSE_POOL_DEFAULT_MIGRATE_TO=b: there is no other pool",
    ),
    (
        "$DISK",
        &[("DORMOUSE_POOL_DEFAULT_ADDR", "redis://:hush@h:6379")],
        "DORMOUSE_POOL_DEFAULT_ADDR, [Pool.default] Path = \"jobs\": both Addr and Path are set: a pool is a Redis or a directory",
    ),
    (
        "[Pool.default]\nAddr = 'h:1'\n$ADMIN",
        &[("DORMOUSE_POOL_DEFAULT_USERNAME", "ann")],
        "DORMOUSE_POOL_DEFAULT_USERNAME=ann is set and Password is not: both are needed",
    ),
    (
        "$DISK[Accounts]\nann = 'hush'",
        &[("DORMOUSE_READ_ONLY_ACCOUNTS_ANN_FILE", "secret")],
        "DORMOUSE_READ_ONLY_ACCOUNTS_ANN_FILE: the user is in [Accounts] too: remove it from one of them",
    ),
];

/// Returns a directory with a file, an empty file, a file with a secret, and an empty directory.
fn dir() -> TempDir {
    let dir = TempDir::new().expect("a temporary directory");
    for (name, text) in [("file", "x"), ("empty", ""), ("secret", "hush\n")] {
        std::fs::write(dir.path().join(name), text).expect("a file");
    }
    std::fs::create_dir(dir.path().join("there")).expect("a directory");
    dir
}

fn run(dir: &Path, command: &[&str], toml: &str, env: &[(&str, &str)]) -> Output {
    let toml = toml
        .replace("$DISK", "[Pool.default]\nPath = 'jobs'\n")
        .replace("$ADMIN", "[AdminRedis]\nAddr = 'h:1'\n");
    std::fs::write(dir.join("c.toml"), toml).expect("a file");
    let mut dormouse = Command::new(env!("CARGO_BIN_EXE_dormouse"));
    dormouse.current_dir(dir).env_clear().envs(env.iter().copied()).args(command).args(["-c", "c.toml"]);
    dormouse.output().expect("the binary runs")
}

#[test]
fn each_ends_with_exit_code_2_and_a_line_that_says_what_would_do() {
    let dir = dir();
    let mut wrong = Vec::new();
    for (toml, env, line) in ROWS {
        let [start, check] = [&[][..], &["check"]].map(|command| run(dir.path(), command, toml, env));
        let said = String::from_utf8_lossy(&start.stderr).into_owned();
        let codes = [start.status.code(), check.status.code()];
        let want = format!("dormouse: {line}\n");
        if said != want || codes != [Some(2), Some(2)] || start.stderr != check.stderr {
            wrong.push(format!("{toml:?} {env:?}: exit codes {codes:?}\n  said {said:?}\n  want {want:?}"));
        }
        assert!(!said.contains("hush"), "a secret is shown: {said}");
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).expect("it is there").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 5, "nothing was made: {left:?}");
}
