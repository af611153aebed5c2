//! The order in which a file keeps the rows or columns of a weight.

/// Where each row of a stored tensor comes from; the same for columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As the weight has them.
    Same,
    /// The rotary channels of every head go from halves to neighbours: row `2i` is the weight's `i`, row `2i + 1` its
    /// `i + rotary/2`. The other channels of the head stay.
    Neighbours {
        /// Channels of a head.
        head: usize,
        /// Channels that are rotated, the first of the head.
        rotary: usize,
    },
    /// So many rows of one weight, then as many of another, and so on.
    InTurn {
        /// Rows of one weight that stand together.
        run: usize,
    },
    /// Heads that stood group by group stand by their number within the group first.
    Tiled {
        /// Rows before the first head, which stay.
        first: usize,
        /// Rows of a head.
        head: usize,
        /// Groups of heads.
        groups: usize,
        /// Heads of a group.
        per_group: usize,
    },
}

impl Order {
    /// Which weight a stored row is of, the first or the second, and its row there.
    pub fn source(self, row: usize) -> (usize, usize) {
        match self {
            Order::Same => (0, row),
            Order::Neighbours { head, rotary } => {
                let (first, channel) = (row / head * head, row % head);
                match channel < rotary {
                    true => (0, first + channel % 2 * (rotary / 2) + channel / 2),
                    false => (0, row),
                }
            }
            Order::InTurn { run } => (row / run % 2, row / (2 * run) * run + row % run),
            Order::Tiled { first, head, groups, per_group } => {
                let Some(after) = row.checked_sub(first) else { return (0, row) };
                let (stored, within) = (after / head, after % head);
                (0, first + (stored % groups * per_group + stored / groups) * head + within)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(order: Order, count: usize) -> Vec<usize> {
        (0..count).map(|row| order.source(row).1).collect()
    }

    #[test]
    fn rows_come_from_where_the_order_says() {
        assert_eq!(rows(Order::Same, 3), [0, 1, 2]);
        assert_eq!(
            rows(Order::Neighbours { head: 6, rotary: 4 }, 12),
            [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
        );
        let in_turn = Order::InTurn { run: 2 };
        assert_eq!(rows(in_turn, 8), [0, 1, 0, 1, 2, 3, 2, 3]);
        assert_eq!((0..8).map(|row| in_turn.source(row).0).collect::<Vec<_>>(), [0, 0, 1, 1, 0, 0, 1, 1]);
        let tiled = Order::Tiled { first: 1, head: 2, groups: 2, per_group: 3 };
        assert_eq!(rows(tiled, 13), [0, 1, 2, 7, 8, 3, 4, 9, 10, 5, 6, 11, 12]);
    }
}
