//! Whose fault a database error is, by its SQLSTATE. Codes are matched, never texts.
//!
//! Source: PostgreSQL's appendix A, "PostgreSQL Error Codes".

/// What an error calls for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Two transactions met: retry the transaction; nobody's attempt.
    Conflict,
    /// No database, or one that can't write now: wait and retry for ever; nobody's attempt.
    Infrastructure,
    /// The set-up is wrong (schema, privileges, pooler): nothing will work until a person acts; nobody's attempt.
    Systemic,
    /// The statement went over its time: the message's attempt.
    Timeout,
    /// The data is at fault and will be again: the message's, at once.
    Data,
    /// A constraint that other data may yet satisfy: the message's attempt.
    Constraint,
    /// Anything else, the application's own errors (`RAISE`) among them: the message's attempt.
    Other,
}

/// Classifies an error of sqlx.
pub fn fault_of(error: &sqlx::Error) -> Fault {
    match error {
        sqlx::Error::Database(database) => database.code().map_or(Fault::Other, |code| fault_of_code(&code)),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed
        | sqlx::Error::Protocol(_) => Fault::Infrastructure,
        sqlx::Error::Configuration(_) => Fault::Systemic,
        _ => Fault::Other,
    }
}

fn fault_of_code(code: &str) -> Fault {
    match code {
        // serialization_failure, deadlock_detected, lock_not_available
        "40001" | "40P01" | "55P03" => Fault::Conflict,
        // read_only_sql_transaction: a primary that became a standby; 25P03, 25P04: idle or long transaction ended
        "25006" | "25P03" | "25P04" => Fault::Infrastructure,
        // admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout
        "57P01" | "57P02" | "57P03" | "57P05" => Fault::Infrastructure,
        "57014" => Fault::Timeout,
        // cardinality_violation, not_null_violation, check_violation
        "21000" | "23502" | "23514" => Fault::Data,
        // a prepared statement that the pooler lost, or that exists twice
        "26000" | "42P05" => Fault::Systemic,
        _ => match code.get(..2).unwrap_or_default() {
            "08" | "53" | "58" | "XX" => Fault::Infrastructure,
            "22" | "54" => Fault::Data,
            "23" => Fault::Constraint,
            "28" | "3D" | "3F" | "42" | "0A" => Fault::Systemic,
            _ => Fault::Other,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_apart() {
        for (code, fault) in [
            ("40P01", Fault::Conflict),
            ("57P01", Fault::Infrastructure),
            ("08006", Fault::Infrastructure),
            ("53100", Fault::Infrastructure),
            ("57014", Fault::Timeout),
            ("22P02", Fault::Data),
            ("23505", Fault::Constraint),
            ("23514", Fault::Data),
            ("42P01", Fault::Systemic),
            ("P0001", Fault::Other),
            ("25P02", Fault::Other),
        ] {
            assert_eq!(fault_of_code(code), fault, "{code}");
        }
    }
}
