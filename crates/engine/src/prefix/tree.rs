//! A radix tree over tokens: paths that share a beginning share its nodes. A node may hold a value, which belongs to the
//! tokens on the way to it. Knows nothing of what the values are.

use std::collections::HashMap;

/// Index of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(usize);

const ROOT: NodeId = NodeId(0);

#[derive(Debug)]
struct Node<T> {
    parent: NodeId,
    /// Tokens between the parent and this node; none for the root alone.
    edge: Vec<u32>,
    /// Tokens on the way from the root.
    depth: usize,
    /// By the first token of their edges.
    children: HashMap<u32, NodeId>,
    value: Option<T>,
}

/// How far a path goes along with the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// Tokens that the tree knows.
    pub known: usize,
    /// The nodes on the way that hold values, nearest to the root first.
    pub valued: Vec<NodeId>,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct RadixTree<T> {
    nodes: Vec<Option<Node<T>>>,
    free: Vec<usize>,
}

impl<T> RadixTree<T> {
    /// A tree that knows nothing.
    pub fn new() -> Self {
        let root = Node { parent: ROOT, edge: Vec::new(), depth: 0, children: HashMap::new(), value: None };
        RadixTree { nodes: vec![Some(root)], free: Vec::new() }
    }

    fn node(&self, id: NodeId) -> &Node<T> {
        self.nodes[id.0].as_ref().expect("a node that is linked exists")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node<T> {
        self.nodes[id.0].as_mut().expect("a node that is linked exists")
    }

    fn new_node(&mut self, node: Node<T>) -> NodeId {
        match self.free.pop() {
            Some(index) => {
                self.nodes[index] = Some(node);
                NodeId(index)
            }
            None => {
                self.nodes.push(Some(node));
                NodeId(self.nodes.len() - 1)
            }
        }
    }

    /// Follows a path as far as the tree knows it.
    pub fn find(&self, path: &[u32]) -> Match {
        let mut found = Match { known: 0, valued: Vec::new() };
        let mut at = ROOT;
        while let Some(&child) = path.get(found.known).and_then(|token| self.node(at).children.get(token)) {
            let edge = &self.node(child).edge;
            let shared = common_prefix(edge, &path[found.known..]);
            found.known += shared;
            if shared < edge.len() {
                break;
            }
            at = child;
            if self.node(at).value.is_some() {
                found.valued.push(at);
            }
        }
        found
    }

    /// The node at the end of a path, which is made if it is missing.
    pub fn insert(&mut self, path: &[u32]) -> NodeId {
        let mut at = ROOT;
        loop {
            let depth = self.node(at).depth;
            let Some(&first) = path.get(depth) else { return at };
            let Some(&child) = self.node(at).children.get(&first) else {
                let edge = path[depth..].to_vec();
                let leaf =
                    Node { parent: at, edge, depth: path.len(), children: HashMap::new(), value: None };
                let leaf = self.new_node(leaf);
                self.node_mut(at).children.insert(first, leaf);
                return leaf;
            };
            let shared = common_prefix(&self.node(child).edge, &path[depth..]);
            at = if shared == self.node(child).edge.len() { child } else { self.split(child, shared) };
        }
    }

    /// Puts a node into the edge of another, so many tokens after the parent.
    fn split(&mut self, child: NodeId, at: usize) -> NodeId {
        let lower = self.node_mut(child);
        let parent = lower.parent;
        let below = lower.edge.split_off(at);
        let edge = std::mem::replace(&mut lower.edge, below);
        let (first, below) = (edge[0], lower.edge[0]);
        let depth = lower.depth - lower.edge.len();
        let children = HashMap::from([(below, child)]);
        let upper = self.new_node(Node { parent, edge, depth, children, value: None });
        self.node_mut(child).parent = upper;
        self.node_mut(parent).children.insert(first, upper);
        upper
    }

    /// The value of a node.
    pub fn value(&self, id: NodeId) -> Option<&T> {
        self.node(id).value.as_ref()
    }

    /// The value of a node, to change it.
    pub fn value_mut(&mut self, id: NodeId) -> &mut Option<T> {
        &mut self.node_mut(id).value
    }

    /// Tokens on the way to a node.
    pub fn depth(&self, id: NodeId) -> usize {
        self.node(id).depth
    }

    /// Depth of the nearest node above that holds a value, or 0.
    pub fn depth_above(&self, id: NodeId) -> usize {
        let mut at = self.node(id).parent;
        while at != ROOT && self.node(at).value.is_none() {
            at = self.node(at).parent;
        }
        self.node(at).depth
    }

    /// Whether paths go on from a node.
    pub fn has_children(&self, id: NodeId) -> bool {
        !self.node(id).children.is_empty()
    }

    /// Takes a node's value, and forgets tokens that lead to no value any more.
    pub fn remove(&mut self, id: NodeId) -> Option<T> {
        let value = self.node_mut(id).value.take();
        let mut at = id;
        while at != ROOT && self.node(at).value.is_none() {
            let parent = self.node(at).parent;
            let first = self.node(at).edge[0];
            let mut children = self.node(at).children.values().copied();
            match (children.next(), children.next()) {
                (None, _) => {
                    self.node_mut(parent).children.remove(&first);
                    self.nodes[at.0] = None;
                    self.free.push(at.0);
                    at = parent;
                }
                (Some(child), None) => {
                    let mut edge = std::mem::take(&mut self.node_mut(at).edge);
                    let lower = self.node_mut(child);
                    edge.append(&mut lower.edge);
                    (lower.edge, lower.parent) = (edge, parent);
                    self.node_mut(parent).children.insert(first, child);
                    self.nodes[at.0] = None;
                    self.free.push(at.0);
                    break;
                }
                _ => break,
            }
        }
        value
    }

    /// Every node that holds a value.
    pub fn valued(&self) -> impl Iterator<Item = NodeId> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter(|(_, node)| node.as_ref().is_some_and(|node| node.value.is_some()))
            .map(|(i, _)| NodeId(i))
    }

    /// Tokens held.
    #[cfg(test)]
    fn tokens(&self) -> usize {
        self.nodes.iter().flatten().map(|node| node.edge.len()).sum()
    }
}

/// Tokens that two paths start with alike.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_share_their_beginning() {
        let mut tree = RadixTree::new();
        for path in [&[1, 2, 3, 4][..], &[1, 2, 5], &[1, 2]] {
            let node = tree.insert(path);
            *tree.value_mut(node) = Some(path.to_vec());
        }
        assert_eq!(tree.tokens(), 5);
        let found = tree.find(&[1, 2, 3, 9]);
        assert_eq!((found.known, found.valued.len()), (3, 1));
        assert_eq!(tree.value(found.valued[0]), Some(&vec![1, 2]));
        assert_eq!(tree.find(&[7]).known, 0);
        let deepest = *tree.find(&[1, 2, 3, 4, 8]).valued.last().unwrap();
        assert_eq!((tree.depth(deepest), tree.depth_above(deepest)), (4, 2));
        tree.remove(deepest);
        assert_eq!(tree.tokens(), 3, "what leads nowhere is forgotten");
    }

    fn path() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(0u32..3, 1..9)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        /// A map from paths to values behaves the same.
        #[test]
        fn the_tree_is_a_map(changes in prop::collection::vec((path(), any::<bool>()), 1..40), ask in path()) {
            let (mut tree, mut map) = (RadixTree::new(), BTreeMap::new());
            for (number, (path, add)) in changes.into_iter().enumerate() {
                if add {
                    let node = tree.insert(&path);
                    *tree.value_mut(node) = Some(number);
                    map.insert(path, number);
                } else if map.remove(&path).is_some() {
                    let node = *tree.find(&path).valued.last().expect("it was added");
                    tree.remove(node);
                }
            }
            let found = tree.find(&ask);
            let held: Vec<usize> = found.valued.iter().map(|id| *tree.value(*id).unwrap()).collect();
            let want: Vec<usize> =
                (1..=ask.len()).filter_map(|n| map.get(&ask[..n]).copied()).collect();
            prop_assert_eq!(held, want);
            let known = map.keys().map(|path| common_prefix(path, &ask)).max().unwrap_or(0);
            prop_assert_eq!(found.known, known);
            prop_assert_eq!(tree.valued().count(), map.len());
            let mut prefixes: Vec<&[u32]> = map.keys().flat_map(|path| (1..=path.len()).map(|n| &path[..n])).collect();
            prefixes.sort();
            prefixes.dedup();
            prop_assert_eq!(tree.tokens(), prefixes.len(), "no token is held twice or for nothing");
        }
    }
}
